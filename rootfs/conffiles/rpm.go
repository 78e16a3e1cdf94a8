package conffiles

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"time"
)

// RPMDatabases are the files that can have the packages of rpm: first the place of new hosts, then that
// of older ones. The formats are sqlite, ndb and Berkeley DB.
var RPMDatabases = []string{
	"/usr/lib/sysimage/rpm/rpmdb.sqlite", "/usr/lib/sysimage/rpm/Packages.db",
	"/var/lib/rpm/rpmdb.sqlite", "/var/lib/rpm/Packages.db", "/var/lib/rpm/Packages",
}

const (
	rpmProgram = "/usr/bin/rpm"
	// rpmTime bounds a query. A host with 2,500 packages needs some seconds.
	rpmTime = 15 * time.Second
	// rpmFormat prints a line for each file: flags, sum and path of a package's file.
	rpmFormat = `[%{=NAME}\t%{FILEFLAGS}\t%{FILEDIGESTS}\t%{FILENAMES}\n]`
	// Flags of a file: rpmfiles.h, RPMFILE_CONFIG and RPMFILE_GHOST.
	rpmConfig, rpmGhost = 1 << 0, 1 << 6
	mostRPMLine         = 64 << 10
)

// queryRPM asks rpm for the configuration files of the packages in a directory with a database. The
// root has the files of the packages.
func queryRPM(ctx context.Context, dir, root string) ([]File, error) {
	cmd := exec.CommandContext(ctx, rpmProgram, "--dbpath", dir, "--query", "--all", "--queryformat", rpmFormat)
	cmd.Env, cmd.Dir = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LC_ALL=C"}, "/"
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	files, readErr := readRPM(out, root)
	if readErr != nil {
		_ = cmd.Process.Kill() // Wait reports it
	}
	if err := cmd.Wait(); err != nil {
		return nil, err
	}
	return files, readErr
}

// readRPM reads the lines of rpmFormat. The lines of a package are one after another.
func readRPM(lines io.Reader, root string) (files []File, err error) {
	var own []File
	name, program := "", false
	finish := func() {
		if program {
			files = append(files, own...)
		}
		own, program = nil, false
	}
	scan := bufio.NewScanner(lines)
	scan.Buffer(nil, mostRPMLine)
	for scan.Scan() {
		words := bytes.SplitN(scan.Bytes(), []byte("\t"), 4)
		if len(words) < 4 {
			continue
		}
		if string(words[0]) != name {
			finish()
			name = string(words[0])
		}
		flags, err := strconv.ParseUint(string(words[1]), 10, 32)
		if err != nil {
			continue
		}
		switch file := string(words[3]); {
		case flags&rpmConfig == 0:
			program = program || ofProgram(file) && present(root+file)
		case flags&rpmGhost == 0 && path.Clean(file) == file && strings.HasPrefix(file, "/etc/") && Never(file[len("/etc/"):]) == "":
			own = append(own, File{Name: file[len("/etc/"):], Sum: string(words[2])})
		}
	}
	finish()
	return files, scan.Err()
}
