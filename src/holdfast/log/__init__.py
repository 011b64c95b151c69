"""The log: an app's changelog on object storage, and the only truth.

names       where each object stands
storage     create-if-absent objects on a local folder, S3, GCS, Azure or in memory
documents   small JSON objects that carry their checksum
segments    what one task changed in one version
commits     what makes a version exist
appfile     what the app is, checked at every start
snapshots   a task's whole state, from which restore starts
sinks       how far each sink has been written
log         all of these together
tail        following the log
cleaning    taking away what nobody needs any more
"""
