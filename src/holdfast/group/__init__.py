"""The group: the instances of one app, found through the log, and which of them hosts which task.

    members.py       heartbeats: what each instance writes about itself
    failure_detector.py   which members are alive, by the own clock of the process that looks
    generations.py   assignments, numbered, created if absent
    assignor.py      where tasks should be: a pure function, with candidates.py, weights.py, draft.py, picking.py,
                     roles.py, moving.py, explaining.py; own_assignor.py loads and checks a user's own
    coordinator.py   proposes the next generation; run by the driver, or without one by a member
    membership.py    the side of an instance: heartbeats out, generations in
    member_steps.py, driver_steps.py   all that a member and the driver do, without threads and sockets
    overview.py      what `holdfast group` shows
    driver_heartbeat.py   whether a driver lives
    rebalances.py    what a generation moves, as events
    pace.py, rules.py     how often heartbeats are written; settings and app files for the coordinator
    side_by_side.py       calls that wait for the network

Nothing here is about correctness: any replica may serve any version that it has reached (invariant 6). All I/O goes
through the storage of the log, and all time comes in as an argument, so that one thread can run a whole group.
"""
