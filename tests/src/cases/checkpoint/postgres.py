"""PostgreSQL under pgbench, and a client that says each transaction that was acknowledged, all by sockets of the container. At SIGTERM: whether all
that was acknowledged is there, and whole."""
import glob
import os
import signal
import subprocess
import time

BIN = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))[-1]
DATA, ENV = "/srv/pg/data", {"PATH": BIN + ":/usr/bin:/bin", "HOME": "/srv/pg", "PGHOST": "/srv/pg", "PGDATABASE": "postgres", "LC_ALL": "C.UTF-8"}
if os.path.exists("/srv/user.so"):
    ENV["LD_PRELOAD"] = "/srv/user.so"
ended = False


def end(*_):
    global ended
    ended = True


def run(*words):
    done = subprocess.run(words, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, (words, done.stdout)
    return done.stdout


def psql():
    return subprocess.Popen(["psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"], env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


os.mkdir(DATA, 0o700)
os.chown(DATA, os.stat("/srv/pg").st_uid, os.stat("/srv/pg").st_gid)
run("initdb", "-D", DATA, "-A", "trust", "--data-checksums", "-U", "vellum")
ENV["PGUSER"] = "vellum"
options = ["-h", "", "-k", "/srv/pg", "-c", "shared_buffers=32MB", "-c", "max_wal_size=64MB", "-c", "checkpoint_timeout=30s"]
server = subprocess.Popen(["postgres", "-D", DATA, *options], env=ENV, stderr=open("/srv/pg/log", "w"))
for _ in range(300):
    if subprocess.run(["pg_isready", "-q"], env=ENV).returncode == 0:
        break
    time.sleep(0.1)
run("pgbench", "-q", "-i", "-s", "2")
run("psql", "-X", "-c", "create table acked (n int primary key); create extension amcheck")
load = subprocess.Popen(["pgbench", "-n", "-c", "4", "-T", "600"], env=ENV, stdout=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, end)
client = psql()


def ask(words):
    client.stdin.write(words + ";\n")
    client.stdin.flush()
    return client.stdout.readline().strip()


backend, number = ask("select pg_backend_pid()"), 0
while not ended:
    number += 1
    assert ask(f"insert into acked values ({number}) returning n") == str(number)
    assert ask("select pg_backend_pid()") == backend and load.poll() is None and server.poll() is None
    print(number, flush=True)
    time.sleep(0.01)
load.send_signal(signal.SIGINT)
load.wait()
assert ask("select count(*), max(n) from acked") == f"{number}|{number}"
sums = "select count(distinct s) from (select sum(abalance) s from pgbench_accounts union all select sum(bbalance) from pgbench_branches "
sums += "union all select sum(tbalance) from pgbench_tellers union all select coalesce(sum(delta), 0) from pgbench_history) x"
assert ask(sums) == "1"
history = ask("select count(*) from pgbench_history")
run("pg_amcheck", "--heapallindexed", "--parent-check")
client.stdin.close()
client.wait()
server.send_signal(signal.SIGINT)
assert server.wait() == 0
assert "Bad checksums:  0" in run("pg_checksums", "--check", "-D", DATA)
print("whole", number, history, flush=True)
