"""monkey.py DIR SEED COUNT [text] [binary] [single] [autorun] does COUNT random things in DIR, which follow from
SEED. Much of it is not possible, which does no harm. With "text" it does what a
patch can tell: text, links and modes of programs, and directories stay such. "binary"
gives some of the text a NUL. With
"single" each file has one name. With "autorun" some paths run without a question."""

import os
import random
import shutil
import sys

top, seed, count = os.fsencode(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
text = "text" in sys.argv[4:]
binary = "binary" in sys.argv[4:]
r = random.Random(seed)

names = [b"a", b"b c", b"new\nline", b"\xff\xfe", b'"q"\\', b"-rf", "übung".encode(), b"n" * 255]
dirs = [b"src", b"tab\there", b"\xfd", b"d" * 255] if text else names
if "autorun" in sys.argv[4:]:
    names, dirs = names + [b".envrc", b"config"], dirs + [b".git", b"hooks"]
modes = [0o644, 0o755] if text else [0o600, 0o644, 0o755, 0o4711, 0o400, 0o000]


def place(names):
    """A path of which nothing needs to exist."""
    parts = [r.choice(dirs) for _ in range(r.choice([0, 0, 1, 1, 2]))]
    return os.path.join(top, *parts, r.choice(names))


def content():
    if text:
        return b"".join(r.choice([b"", b"a", b"-- a", b"@@ -1 +1 @@", b"\xff"]) + b"%d\n" % r.randrange(9)
                        for _ in range(r.choice([0, 1, 40]))) + r.choice([b"", b"end"]) + (r.choice([b"", b"\0", r.randbytes(9000) + b"\0"]) if binary else b"")
    return r.choice([b"", b"x", b"\0\xff", r.randbytes(r.randrange(1 << 17))])


def write(path, flags, mode=0o644):
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, mode)
    try:
        os.write(fd, content())
    finally:
        os.close(fd)


def remove(path):
    if os.path.isdir(path):  # rmtree waits for who writes to a fifo
        shutil.rmtree(path)


def again(path):
    remove(path)
    os.mkdir(path)
    write(os.path.join(path, r.choice(names)), os.O_CREAT)


def within(do):
    """do with one of the files, or with a directory."""
    do(place(names)) if r.random() < 0.7 else do(place(dirs))


def rename():
    kind = r.choice([names, dirs])
    os.rename(place(kind), place(kind if text else r.choice([names, dirs])))


def link(old, new):
    if "single" not in sys.argv:
        os.link(old, new, follow_symlinks=False)


def both():
    """Two names for a file that is new."""
    path = place(names)
    write(path, os.O_CREAT | os.O_EXCL)
    link(path, place(names))


def touch(path):
    os.utime(path, ns=(0, r.randrange(1 << 61)), follow_symlinks=False)


doing = [
    lambda: write(place(names), os.O_CREAT | os.O_EXCL, r.choice(modes)),
    lambda: write(place(names), os.O_CREAT | os.O_EXCL),
    lambda: write(place(names), os.O_TRUNC),
    lambda: write(place(names), os.O_APPEND),
    lambda: os.mkdir(place(dirs)),
    lambda: os.mkdir(place(dirs)),
    lambda: os.rmdir(place(dirs)),
    lambda: os.unlink(place(names)),
    rename,
    lambda: link(place(names), place(names)),
    both,
    lambda: os.symlink(r.choice([b"a", b"src/b c", b"nowhere\n", b"\xff"]), place(names)),
    lambda: os.chmod(place(names), r.choice(modes)),
    lambda: remove(place(dirs)),
    lambda: again(place(dirs)),
    lambda: touch(place(names)),
] + ([] if text else [
    lambda: os.truncate(place(names), r.randrange(1 << 18)),
    lambda: os.chmod(place(dirs), r.choice([0o700, 0o755, 0o2775, 0o1777, 0o555])),
    lambda: within(lambda path: os.setxattr(path, b"user.%d" % r.randrange(2), r.choice([b"", b"x", b"\0="]))),
    lambda: os.removexattr(place(names), b"user.%d" % r.randrange(2)),
    lambda: os.mkfifo(place(names), r.choice(modes)),
])

done = 0
for _ in range(count):
    try:
        r.choice(doing)()
        done += 1
    except OSError:
        pass
print(done)
