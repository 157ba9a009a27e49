"""The process of copies. The argument is the descriptor of its socket."""

from __future__ import annotations

import sys

import uvloop

from nereid_adopt.copies.process import copy_until_closed

if __name__ == "__main__":
    uvloop.run(copy_until_closed(int(sys.argv[1])))
