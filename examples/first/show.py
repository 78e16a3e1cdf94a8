"""Prints the Result of a sandbox that `do --json` left on its standard output."""

import json
import sys

result = json.load(sys.stdin)
print(result["stdout"], end="")
print(result["stderr"], end="", file=sys.stderr)
print(f"\n{result['status']}: {result['reason']}")
print(
    f"{result['duration_ms']:.0f} ms, {result['cpu_ms']:.0f} ms of processor time,"
    f" {result['peak_memory_bytes'] / 2**20:.1f} MiB at most"
)
print("limits: " + ", ".join(f"{name} {state}" for name, state in result["limits"].items()))
sys.exit(result["exit_code"])
