package gateway

import (
	"os"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
)

const (
	// memoryGoal is the size of the heap, in bytes, from which on the Go runtime works hard to stay
	// below it.
	memoryGoal = 256 << 20
	// memoryBound is how much private memory the process can get, in bytes. The process ends there.
	memoryBound = 2 << 30
)

// readable are the files that the resolver reads.
func readable() []string {
	return []string{"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services"}
}

// authorities are the files with the certificates of authorities that crypto/x509 reads, for TLS to upstream proxies. A
// worker reads them once, so it need not end when another file takes their place.
func authorities() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
	}
}

// fileTime is the time between two looks for replaced files.
const fileTime = time.Second

// awaitNewFiles returns when a file of the resolver was made or replaced. Landlock knows files, not
// names, so this process cannot read the new file, and the next worker can.
func awaitNewFiles() {
	var watched []string
	for _, path := range readable() {
		if !isForbidden(path) { // a file that only root may read
			watched = append(watched, path)
		}
	}
	for !slices.ContainsFunc(watched, isForbidden) {
		time.Sleep(fileTime)
	}
}

func isForbidden(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err == unix.EACCES
}

// limitResources bounds the memory of the next program, raises the bound of descriptors as far as
// possible, and turns core dumps off.
func limitResources() error {
	present, err := worker.PrivateMemory()
	if err != nil {
		return err
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	for _, l := range []struct {
		resource int
		most     uint64
	}{
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_DATA, present + memoryBound}, // the next program begins with about as much as this one
		{unix.RLIMIT_NOFILE, files.Max},
	} {
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: l.most, Max: l.most}); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	return nil
}

// confine takes the remaining rights from the process for ever.
func confine() error {
	debug.SetMemoryLimit(memoryGoal)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	return worker.FilterCalls(allowedCalls(), conditions())
}
