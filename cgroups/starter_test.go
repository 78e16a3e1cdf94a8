package cgroups

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// startAsked does with each directory that comes through descriptor 3 what it
// is asked, and says in a line what came of it.
func startAsked(*bufio.Reader, []string) error {
	var ends []io.Closer // of what was started, which lives as long as this does
	defer func() {
		for _, end := range ends {
			end.Close()
		}
	}()
	for {
		ask, dir, err := receive(3)
		if err != nil || ask == "" {
			return err
		}
		answer := ""
		switch uid, isStart := strings.CutPrefix(ask, "start "); {
		case isStart:
			var end io.Closer
			if answer, end, err = startThere(dir, uid); err == nil {
				ends = append(ends, end)
			}
		case ask == "climb":
			answer, err = climb(dir)
		case ask == "unlimit":
			err = errors.Join(writeFile(dir, "cgroup.kill", "1"), writeFile(dir, "cgroup.freeze", "0"))
		}
		if err != nil {
			answer = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		dir.Close()
		fmt.Println(answer)
	}
}

func receive(socket int) (ask string, dir *os.File, err error) {
	var text, rights [128]byte
	n, nRights, _, _, err := unix.Recvmsg(socket, text[:], rights[:], unix.MSG_CMSG_CLOEXEC)
	if n == 0 || err != nil {
		return "", nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:nRights])
	if err != nil {
		return "", nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return "", nil, err
	}
	return string(text[:n]), os.NewFile(uintptr(fds[0]), "dir"), nil
}

// startThere has a program born in the group, which lives until it is killed or
// its input ends.
func startThere(dir *os.File, uid string) (answer string, end io.Closer, err error) {
	p := newProgram("echo")
	p.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: syscall.SIGKILL}
	if id, err := strconv.Atoi(uid); err == nil && id == os.Getuid() {
		p.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(id), Gid: uint32(id), NoSetGroups: true} //nolint:gosec // a test's constant
	}
	if end, err = p.StdinPipe(); err != nil {
		return "", nil, err
	}
	if err := p.Start(); err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("started %d", p.Process.Pid), end, nil
}

// climb lists the groups at the top of what a directory leads up to.
func climb(dir *os.File) (string, error) {
	fd, err := unix.Openat(int(dir.Fd()), strings.Repeat("../", 20), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	top := os.NewFile(uintptr(fd), "top")
	defer top.Close()
	entries, err := top.ReadDir(-1)
	if err != nil {
		return "", err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return strings.Join(names, " "), nil
}
