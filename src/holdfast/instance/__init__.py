"""Instances: long-lived processes that hold replicas of tasks, hand state to Spark's tasks and answer queries.

steps, run, overlay, events      pure: what to do next, what has changed, what has happened
base, held, replica              one task's stores at a version, moved forward and read
layout, restore, snapshotter     the folder on disk, catching up many tasks, saving snapshots
service, client, process         Arrow Flight on loopback, its client, and the process around it all
"""
