"""Instances: long-lived processes that hold replicas of tasks, hand state to Spark's tasks and answer queries.

next_step, run, overlay, events          pure: the next step of a replica, changes in memory, reported events
task_engines, read_views, replica        one task's stores at a version, brought forward and read
state_dir, updater, maintenance          the folder on disk, and the loops that catch up, flush and save snapshots
instance, service, client, process       the tasks hosted, Arrow Flight, its client, and the process
credentials, callers, handshake          who may call an instance, and why a client isn't accepted
"""
