"""The log: an app's changelog on object storage, and the only source of truth.

names      the name of every object
objects    what the log requires of a storage; storage opens one: a local folder, S3, GCS, Azure or memory
documents  small JSON objects that carry their checksum
segments   what one task changed in one version
commits    what makes a version exist
chain      reading commits, and finding the newest
identity   which log this is
appfile    what the app consists of, checked at every start; appfiles reads and writes the files
snapshots  a task's whole state, from which a restore starts
sinks      how far each sink has been written
log        all of these together
cleaning   deleting objects that are no longer needed
"""
