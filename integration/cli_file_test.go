package integration

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// fileCases are of volumes, copies and images.
var fileCases = []cliCase{
	{"bind mounts, to read and to write", "", func(c cli) {
		dir := c.TempDir()
		write(c, filepath.Join(dir, "f"), "host\n")
		c.want(c.once("cat /ro/f; touch /ro/new 2>&1; echo container > /rw/f; rm /rw/f && echo new > /rw/new", "--volume", dir+":/ro:ro", "--volume", dir+":/rw"),
			"host\ntouch: /ro/new: Read-only file system\n")
		if got := content(c, filepath.Join(dir, "new")); got != "new\n" || exists(filepath.Join(dir, "f")) {
			c.Errorf("the host has %q", got)
		}
	}},
	{"bind mount of a file", "", func(c cli) {
		file := filepath.Join(c.TempDir(), "f")
		write(c, file, "host\n")
		c.want(c.once("cat /etc/passwd; echo container > /etc/passwd", "--mount", "type=bind,src="+file+",dst=/etc/passwd"), "host\n")
		if got := content(c, file); got != "container\n" {
			c.Errorf("the host has %q", got)
		}
	}},
	{"bind mounts below bind mounts", "", func(c cli) {
		dir := c.TempDir()
		mountTmpfs(c, filepath.Join(dir, "below"))
		c.Cleanup(func() { unmount(c, filepath.Join(dir, "below")) })
		write(c, filepath.Join(dir, "below", "f"), "below\n")
		c.want(c.once("cat /d/below/f", "--volume", dir+":/d"), "below\n")
		if c.name == "docker" {
			c.want(c.once("ls /d/below", "--mount", "type=bind,src="+dir+",dst=/d,bind-nonrecursive"), "")
		}
	}},
	{"volume outlives its container", "", func(c cli) {
		c.ok("volume", "create", "kept")
		c.Cleanup(func() {
			c.removeAll()
			c.ok("volume", "rm", "kept")
		})
		c.want(c.once("echo kept > /v/f", "--volume", "kept:/v"), "")
		c.want(c.once("cat /v/f; touch /v/new 2>&1; true", "--volume", "kept:/v:ro"), "kept\ntouch: /v/new: Read-only file system\n")
		id := c.start("sleep 1000", "--volume", "kept:/v")
		c.want(c.once("cat /v/f", "--volumes-from", id), "kept\n")
	}},
	{"copies both ways, of a running container and a stopped one", "", func(c cli) {
		dir := c.TempDir()
		write(c, filepath.Join(dir, "in"), "from the host\n")
		// The file is there before its content is.
		id := c.start("echo inside > /out; echo ready; until test -s /copied; do sleep 0.1; done; cat /copied")
		c.says(id, "ready")
		c.ok("cp", filepath.Join(dir, "in"), id+":/copied")
		if got := c.status(id); got != 0 {
			c.Errorf("status %d", got)
		}
		c.says(id, "from the host")
		c.ok("cp", id+":/out", filepath.Join(dir, "out"))
		if got := content(c, filepath.Join(dir, "out")); got != "inside\n" {
			c.Errorf("copied out: %q", got)
		}
	}},
	{"diff tells what it changed", "", func(c cli) {
		id := c.start("echo x > /new; rm /etc/group; echo x >> /etc/passwd")
		c.status(id)
		got := c.ok("diff", id)
		for _, line := range []string{"A /new\n", "D /etc/group\n", "C /etc/passwd\n"} {
			if !strings.Contains(got, line) {
				c.Errorf("no %q in %q", line, got)
			}
		}
	}},
	{"export has its files", "", func(c cli) {
		id := c.start("echo exported > /new; ln -s new /link")
		c.status(id)
		file := filepath.Join(c.TempDir(), "tar")
		c.ok("export", "--output", file, id)
		files := readTar(c, file)
		if files["new"] != "exported\n" || files["link"] != "-> new" {
			c.Errorf("new %q, link %q", files["new"], files["link"])
		}
	}},
	// podman wants a file in /etc for it, which is the host's.
	{"commit makes an image of a running container", "docker", func(c cli) {
		id := c.start("echo committed > /new; echo ready; exec sleep 1000")
		c.says(id, "ready")
		c.ok("commit", "--change", "ENV A=b", id, "committed")
		c.Cleanup(func() { c.ok("rmi", "committed") })
		c.want(run(c, c.command("run", "--rm", "committed", "sh", "-c", "cat /new; echo $A")), "committed\nb\n")
		c.want(c.inside(id, "echo here"), "here\n")
	}},
	{"build runs, copies and sets", "", func(c cli) {
		dir := c.TempDir()
		write(c, filepath.Join(dir, "f"), "copied\n")
		write(c, filepath.Join(dir, "Dockerfile"), `FROM busybox
COPY f /copied
RUN chmod 600 /copied && chown user /copied && mkdir /made && chown user /made
WORKDIR /made
USER user
ENV A=b
RUN id -u > whoami; ! touch /new
ENTRYPOINT ["sh", "-c"]
CMD ["cat /copied whoami; pwd; echo $A"]
`)
		c.ok("build", "--tag", "built", dir)
		c.Cleanup(func() { c.ok("rmi", "built") })
		c.want(run(c, c.command("run", "--rm", "built")), "copied\n1000\n/made\nb\n")
	}},
	{"build ends where a step fails", "", func(c cli) {
		dir := c.TempDir()
		write(c, filepath.Join(dir, "Dockerfile"), "FROM busybox\nRUN echo reached; exit 9\nRUN echo not reached\n")
		got := run(c, c.command("build", "--force-rm", dir))
		if all := got.stdout + got.stderr; got.code == 0 || !strings.Contains(all, "\nreached\n") || strings.Contains(all, "\nnot reached\n") || !strings.Contains(all, "9") {
			c.Errorf("got %+v", got)
		}
	}},
	{"build's steps have limits", "", func(c cli) {
		dir := c.TempDir()
		write(c, filepath.Join(dir, "Dockerfile"), "FROM busybox\nRUN exec 2>&1; dd if=/dev/zero of=/dev/null bs=100M count=1; echo status $?; ls /sys/class/net\n")
		// On one stream: what the shell says of dd's end is told in its place.
		got := c.ok("build", "--no-cache", "--force-rm", "--memory", "32m", "--network", "none", "--tag", "limited", dir)
		c.Cleanup(func() { c.ok("rmi", "limited") })
		if !strings.Contains(got, "status 137\nlo\n") || strings.Contains(got, "eth0") {
			c.Errorf("got %s", got)
		}
	}},
}

func write(c cli, path, data string) {
	c.Helper()
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		c.Fatal(err)
	}
}

func readTar(c cli, path string) map[string]string {
	c.Helper()
	f, err := os.Open(path)
	if err != nil {
		c.Fatal(err)
	}
	defer f.Close()
	files := map[string]string{}
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			c.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			c.Fatal(err)
		}
		files[header.Name] = string(data)
		if header.Linkname != "" {
			files[header.Name] = "-> " + header.Linkname
		}
	}
}
