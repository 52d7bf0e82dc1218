"""How much a program can be given when it is started: Linux refuses more (``E2BIG``).

The desired state is held to it before anything is placed; nodes, which write scripts to a file, to
the same length of those.
"""

#: One argument or variable, with its name: 128 KiB with the NUL at its end.
STRING_BYTES_MAX = 128 * 1024 - 1
#: Arguments and variables together. A program gets 2 MiB where its stack may have the usual 8 MiB;
#: half is left to what Muster, the node and an image add.
STRINGS_BYTES_MAX = 2**20
SCRIPT_BYTES_MAX = 2**20
