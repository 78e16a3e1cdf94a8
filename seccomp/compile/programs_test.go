package compile

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Real programs, each in an empty directory of its own. What they print ends
// with "fine" when they came through.
const (
	pythonCompute = `
import asyncio, concurrent.futures, multiprocessing, os, pwd, shutil, sqlite3, subprocess, tempfile, threading, time
def square(n): return n * n
with multiprocessing.Pool(2) as pool: assert pool.map(square, range(4)) == [0, 1, 4, 9]
with concurrent.futures.ThreadPoolExecutor(4) as pool: assert sum(pool.map(square, range(4))) == 14
async def run():
    p = await asyncio.create_subprocess_exec("true")
    return await p.wait()
assert asyncio.run(run()) == 0
assert subprocess.run("echo a | tr a b", shell=True, capture_output=True, text=True).stdout == "b\n"
with tempfile.TemporaryDirectory() as d:
    p = os.path.join(d, "f"); open(p, "w").write("x" * 100000); shutil.copy2(p, p + "2"); shutil.copytree(d, d + "/t", ignore=lambda *a: ["t"])
    os.mkfifo(p + "3"); os.chmod(p, 0o755); os.utime(p); os.symlink(p, p + "4")
sqlite3.connect("db").execute("create table t(a)")
pwd.getpwuid(0); time.sleep(0.001); os.sched_getaffinity(0); os.nice(1)
`
	pythonNetwork = `
import socket, socketserver, threading
assert socket.getaddrinfo("localhost", 80)
socket.if_nameindex()
class H(socketserver.BaseRequestHandler):
    def handle(self): self.request.sendall(self.request.recv(9))
for server in (socketserver.TCPServer(("127.0.0.1", 0), H), socketserver.UnixStreamServer("sock", H)):
    threading.Thread(target=server.handle_request).start()
    c = socket.socket(server.address_family, socket.SOCK_STREAM); c.connect(server.server_address)
    c.sendall(b"hi"); assert c.recv(9) == b"hi"
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("127.0.0.1", 0)); u.sendto(b"x", u.getsockname()); assert u.recv(9) == b"x"
`
	nodeCompute = `
const fs = require('fs'), cp = require('child_process'), { Worker } = require('worker_threads'), zlib = require('zlib');
fs.writeFileSync('f', 'x'.repeat(100000)); fs.copyFileSync('f', 'g'); fs.cpSync('f', 'h');
if (cp.execSync('echo a').toString() !== 'a\n') process.exit(1);
zlib.gzip('abc', () => new Worker('require("worker_threads").parentPort.postMessage(1)', { eval: true })
  .on('message', () => fs.promises.readFile('g').then(() => console.log('fine'))));
`
	nodeNetwork = `
const http = require('http');
const s = http.createServer((q, r) => r.end('fine')).listen(0, '127.0.0.1', () =>
  http.get(s.address(), r => { r.pipe(process.stdout); r.on('end', () => { console.log(); s.close(); }); }));
`
	shellCompute = `
set -e
mkdir -p a/b; echo one > a/b/f; ln -s f a/b/l; ln a/b/f a/b/h; mkfifo a/p
chmod 755 a/b/f; touch -d yesterday a/b/f; cp -a a c; mv c d; tar cf t.tar a; tar xf t.tar -C d; gzip t.tar
find . -type f | sort | xargs cat | sed s/one/two/ | grep -c two > n; sed -i s/one/three/ a/b/f
(sleep 0.01 & wait); cat <(echo x) <<< y; trap : TERM; kill -TERM $$; df . ; ps > /dev/null || :; stat a; id -u; umask 077; ulimit -c 0
dd if=/dev/zero of=z bs=64k count=2 conv=fsync 2> /dev/null; truncate -s 0 z; rm -r a d
`
	gitWork = `
set -e; export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
git init -q r; cd r; git config user.email a@b; git config user.name a
echo x > f; git add f; git commit -qm one; git checkout -qb two; echo y >> f; git commit -qam two; git gc -q; git log --oneline; git clone -q . ../s
`
	cSource = `
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void *run(void *p) { return malloc(*(size_t *)p) ? p : 0; }
int main(void) {
	pthread_t t; size_t n = 1 << 20; void *r = 0;
	if (pthread_create(&t, 0, run, &n) || pthread_join(t, &r) || !r) return 1;
	int s; if (fork() == 0) _exit(0);
	if (wait(&s) < 0 || s || system("exit 0")) return 2;
	return 0;
}
`
	goSource = `package main

import (
	"io"
	"net"
	"os"
	"os/exec"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	must(exec.Command("true").Run())
	must(os.WriteFile("f", make([]byte, 1<<20), 0o600))
	root, err := os.OpenRoot(".")
	must(err)
	_, err = root.Stat("f")
	must(err)
	from, err := os.Open("f")
	must(err)
	to, err := os.Create("g")
	must(err)
	_, err = io.Copy(to, from)
	must(err)
	if len(os.Args) > 1 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(err)
		go func() {
			c, err := l.Accept()
			must(err)
			c.Write([]byte("x"))
			c.Close()
		}()
		c, err := net.Dial("tcp", l.Addr().String())
		must(err)
		_, err = io.Copy(to, c)
		must(err)
	}
}
`
)

type program struct {
	name     string
	needs    string // a program on PATH
	files    map[string]string
	shell    string // for bash, in the directory
	profiles []string
}

func programs() []program {
	// debug allows what default allows, and more.
	both, network := []string{"default", "strict"}, []string{"default"}
	return []program{
		{"shell and coreutils", "bash", nil, shellCompute, both},
		{"perl", "perl", nil, `perl -e 'open F, "-|", "echo a" or die; <F> eq "a\n" or die; fork // die; wait'`, both},
		{"python computing", "python3", map[string]string{"x.py": pythonCompute}, "python3 x.py", both},
		{"python on the network", "python3", map[string]string{"x.py": pythonNetwork}, "python3 x.py", network},
		{"node computing", "node", map[string]string{"x.js": nodeCompute}, "[ $(node x.js) = fine ]", both},
		{"node on the network", "node", map[string]string{"x.js": nodeNetwork}, "[ $(node x.js) = fine ]", network},
		{"git", "git", nil, gitWork, both},
		{"gcc", "gcc", map[string]string{"x.c": cSource}, "gcc -pthread -o x x.c && ./x", both},
		{"java", "java", map[string]string{"X.java": `class X { public static void main(String[] a) throws Exception { var t = new Thread(() -> System.gc()); t.start(); t.join(); } }`}, "java X.java", both},
		{"go", "go", map[string]string{"x.go": goSource, "go.mod": "module x\n"}, "CGO_ENABLED=0 go build -o x . && ./x", both},
		{"go on the network", "go", map[string]string{"x.go": goSource, "go.mod": "module x\n"}, "CGO_ENABLED=0 go build -o x . && ./x network", network},
		{"strace", "strace", nil, "strace -f -o log sh -c '(true); true' && grep -q execve log", []string{"debug"}},
		{"gdb", "gdb", nil, "gdb -q -batch -ex run $(type -P true) &> log; cat log; grep -q 'exited normally' log && ! grep -q 'disabling address' log", []string{"debug"}},
	}
}

func TestProgramsRun(t *testing.T) {
	for _, p := range programs() {
		t.Run(p.name, func(t *testing.T) {
			for _, needed := range []string{"bash", p.needs} {
				if _, err := exec.LookPath(needed); err != nil {
					t.Skipf("%s is not on PATH", needed)
				}
			}
			if out, err := p.run(t, noProfile); err != nil {
				t.Skipf("%s does not work here without a filter either: %v: %s", p.name, err, out)
			}
			for _, profile := range p.profiles {
				if out, err := p.run(t, profile); err != nil {
					t.Errorf("under %s: %v: %s", profile, err, out)
				}
			}
		})
	}
}

func (p program) run(t *testing.T, profile string) ([]byte, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range p.files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return child(t, "exec", profile, dir, "bash", "-c", p.shell).CombinedOutput()
}

// TestTracersFailUnderDefault is the other side of gdb and strace under debug.
func TestTracersFailUnderDefault(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not on PATH")
	}
	for _, profile := range []string{"default", "strict"} {
		out, err := child(t, "exec", profile, t.TempDir(), "strace", "true").CombinedOutput()
		if err == nil {
			t.Errorf("strace works under %s: %s", profile, out)
		}
	}
}
