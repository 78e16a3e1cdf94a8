"""Summarises readings.csv into summary.json, then tries what it should not."""

import csv
import json
import os
import socket
from collections import defaultdict
from statistics import mean


def summarise(path):
    by_sensor = defaultdict(list)
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            by_sensor[row["sensor"]].append(float(row["celsius"]))
    return {
        name: {"min": min(v), "mean": round(mean(v), 2), "max": max(v)}
        for name, v in sorted(by_sensor.items())
    }


def attempt(what, action):
    try:
        action()
    except OSError as error:
        print(f"  {what:<28} refused: {error.strerror}")
    else:
        print(f"  {what:<28} WORKED, and should not have")


summary = summarise("readings.csv")
with open("summary.json", "w") as f:
    json.dump(summary, f, indent=2)

print(f"{'sensor':<10}{'min':>8}{'mean':>8}{'max':>8}")
for name, values in summary.items():
    print(f"{name:<10}{values['min']:>8}{values['mean']:>8}{values['max']:>8}")

print(f"\nuid {os.getuid()} on {socket.gethostname()}, in {os.getcwd()}")
attempt("reach the network", lambda: socket.create_connection(("192.0.2.1", 80), timeout=2))
attempt("resolve a name", lambda: socket.getaddrinfo("example.com", 80))
attempt("read the host's passwords", lambda: open("/etc/shadow").read())
attempt("list the host's homes", lambda: os.listdir("/root"))
attempt("change a program", lambda: open("/usr/bin/env", "r+b").close())
attempt("become root", lambda: os.setuid(0))
