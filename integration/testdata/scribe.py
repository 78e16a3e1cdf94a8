"""scribe.py DIR SEED COUNT does COUNT random things in DIR, which follow from SEED, and
prints each in JSON. What a path holds is unknown from the first line about the path to the
second, and stays unknown if an error comes between them."""

import json
import os
import random
import shutil
import sys

top, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
r = random.Random(seed)


def say(what, path, **more):
    print(json.dumps({"what": what, "path": os.path.relpath(path, top), **more}), flush=True)


def place():
    return os.path.join(top, *[r.choice(["src", "d"]) for _ in range(r.choice([0, 0, 1, 1, 2]))], r.choice("abc"))


def lies(path):
    """path leads through no link, and is none."""
    return os.path.realpath(path) == os.path.abspath(path)


def write(path, n):
    token = f"{seed}-{n}\n"
    size = r.choice([0, 5, 5000, 300000, 3 << 20])
    if not lies(path) or os.path.isdir(path) or not os.path.isdir(os.path.dirname(path)):
        return
    say("unknown", path)
    with open(path, "wb", buffering=0) as f:
        data = (token * (size // len(token) + 1)).encode()[:size]
        while data:
            data = data[f.write(data):]
    say("file", path, token=token, size=size)


def rename(old, new):
    if lies(old) and lies(new) and os.path.isfile(old) and os.path.isdir(os.path.dirname(new)) and not os.path.isdir(new) and old != new:
        say("unknown", new)
        say("unknown", old)
        os.rename(old, new)
        say("moved", new, old=os.path.relpath(old, top))


def remove(path):
    if lies(path) and os.path.lexists(path) and path != top:
        say("unknown", path)
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        say("gone", path)


def again(path, n):
    if lies(path) and path != top and os.path.isdir(path):
        remove(path)
        os.mkdir(path)
        write(os.path.join(path, "a"), n)


for n in range(count):
    try:
        kind = r.randrange(10)
        if kind < 5:
            write(place(), n)
        elif kind == 5:
            rename(place(), place())
        elif kind == 6:
            remove(place())
        elif kind == 7:
            remove(os.path.dirname(place()))
        elif kind == 8:
            again(os.path.dirname(place()), n)
        else:
            made = os.path.dirname(place())
            if lies(made):
                os.makedirs(made, exist_ok=True)
    except OSError:
        pass
