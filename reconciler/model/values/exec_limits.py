"""Limits of arguments and environment of a started program: Linux refuses more (``E2BIG``).

Desired state is checked against them before anything is placed. Nodes, which write scripts to a
file, apply the same length to scripts.
"""

#: One argument or variable, with its name: 128 KiB with the NUL at its end.
STRING_BYTES_MAX = 128 * 1024 - 1
#: Arguments and variables together. A program gets 2 MiB where its stack may have the usual 8 MiB;
#: half is left to what Muster, the node and an image add.
STRINGS_BYTES_MAX = 2**20
SCRIPT_BYTES_MAX = 2**20
