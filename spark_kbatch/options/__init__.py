"""Options by name, and arguments of Python calls: each is described once, with its default, and checked here.

option      what an option is: key, type, default, range
write       a write through Spark
read        a read, in batch and as a stream
producer    a producer in plain Python
topic       settings of a topic
arguments   arguments of public methods
"""
