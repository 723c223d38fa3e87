"""Options by key, and arguments of Python calls: each is stated once, with its default, and checked here.

option      what an option is: key, kind, default, text; tables, and fields of dataclasses, of options
kinds       what options accept: numbers, words, text
columns     names of the columns that are written
write       options of a write through Spark
read        options of a read, batch or stream
producer    options of a producer in plain Python
server      options of a server, and of its group coordinator
remote      options of a client of a real cluster
security    those of them that secure its connections
mirror      options of a mirror
registry    options of a schema registry
values      options of keys and values as columns
object_store  options of a bucket's store
topic       topic names and settings
arguments   arguments of public methods
paths       paths of folders
"""
