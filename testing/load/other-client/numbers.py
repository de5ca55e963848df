"""Numbered values through another family of clients (valkey-py), with its default settings.

Usage: numbers.py ADDRESS…; writes until its standard input ends, then verifies every key and prints one line of JSON.
Each thread has keys and a client of its own.
"""

import json
import sys
import threading
import time

from valkey.cluster import ClusterNode, ValkeyCluster

THREADS = 4
KEYS = 500
PAUSE = 0.004


class Writer(threading.Thread):
    """Writes its keys in turn and keeps account of each."""

    def __init__(self, number, seeds, stop):
        super().__init__()
        self.client = ValkeyCluster(startup_nodes=seeds, socket_timeout=5)
        self.keys = [f"other:{number}:{index}" for index in range(KEYS)]
        self.tried = dict.fromkeys(self.keys, 0)
        self.acknowledged = dict.fromkeys(self.keys, 0)
        self.count, self.failures, self.longest, self.stop = 0, {}, 0.0, stop

    def run(self):
        while True:
            for key in self.keys:
                if self.stop.is_set():
                    return
                self.tried[key] += 1
                start = time.monotonic()
                try:
                    self.client.set(key, self.tried[key])
                    self.acknowledged[key] = self.tried[key]
                    self.count += 1
                except Exception as error:  # Whatever the application would see.
                    kind = type(error).__name__
                    self.failures[kind] = self.failures.get(kind, 0) + 1
                self.longest = max(self.longest, time.monotonic() - start)
                time.sleep(PAUSE)

    def lost(self):
        """Keys whose value is older than the last acknowledged one, or newer than any that was tried."""
        found = []
        for key in self.keys:
            value = int(self.client.get(key) or 0)
            if not self.acknowledged[key] <= value <= self.tried[key]:
                found.append([key, value, self.acknowledged[key]])
        return found


def main():
    seeds = [ClusterNode(*address.rsplit(":", 1)) for address in sys.argv[1:]]
    stop = threading.Event()
    writers = [Writer(number, seeds, stop) for number in range(THREADS)]
    for writer in writers:
        writer.start()
    sys.stdin.read()
    stop.set()
    for writer in writers:
        writer.join()
    failures = {}
    for writer in writers:
        for kind, count in writer.failures.items():
            failures[kind] = failures.get(kind, 0) + count
    lost = [one for writer in writers for one in writer.lost()]
    print(
        json.dumps(
            {
                "acknowledged": sum(writer.count for writer in writers),
                "failures": failures,
                "lost": len(lost),
                "examples": lost[:5],
                "longest_ms": round(1000 * max(writer.longest for writer in writers)),
            }
        )
    )


main()
