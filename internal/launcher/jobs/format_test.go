package jobs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/golden"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// fullExec is the record of a detached command with each member.
func fullExec() execRecord {
	return execRecord{
		Version: execVersion, Args: []string{"sh", "-c", "echo <done> && exit 3"},
		Started: time.Date(2026, 11, 30, 12, 0, 1, 123456789, time.UTC), Boot: 90 * time.Second,
		Limits: spec.Limits{
			Memory: 512 << 20, CPUs: 1.5, Pids: 64, FileSize: 1<<20 + 1, NoFile: 1024, ShmSize: 16 << 20, Disk: 1 << 30, Files: 65536,
			IORead: 10 << 20, IOWrite: 5 << 20, NetworkRate: 1 << 20, NetworkQuota: 2 << 30, NetworkRequests: 100,
		},
		Timeout: time.Minute, Grace: spec.Grace(5 * time.Second), OutputLimit: 1 << 20, Ring: true,
		Traffic: &spec.Traffic{Received: 1, Sent: 2, Charged: 3, Requests: 4, Refused: 5},
	}
}

// execOf is the record in testdata with this version: the full one without the members that later versions have added.
func execOf(version int) execRecord {
	r := fullExec()
	r.Version = version
	if version < 1 {
		r.Grace, r.Ring, r.Traffic = 0, false, nil
		r.Limits.ShmSize, r.Limits.NetworkRate, r.Limits.NetworkQuota, r.Limits.NetworkRequests = 0, 0, 0, 0
	}
	return r
}

func goldenExec(version int) string { return fmt.Sprintf("exec-%d.json", version) }

// A member that is renamed, or that gets another form, is lost in the records of commands that run.
func TestTheRecordOfACommandIsWrittenAsBefore(t *testing.T) {
	golden.Full(t, fullExec())
	dir := t.TempDir()
	if err := fullExec().write(dir); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(dir, ExecRecordName))
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, goldenExec(execVersion), written)
}

func TestRecordsOfCommandsOfEachVersionAreRead(t *testing.T) {
	for version := range execVersion + 1 {
		content, err := os.ReadFile(filepath.Join("testdata", goldenExec(version)))
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		testhost.WriteFile(t, filepath.Join(dir, ExecRecordName), string(content))
		got, err := readExecRecord(dir)
		want := execOf(version)
		got.Started = want.Started // see TestSetClockDoesNotChangeHowOldAnExecIs
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("version %d: %v; read\n%+v\nwant\n%+v", version, err, got, want)
		}
	}
}

func TestARecordOfACommandOfANewerReleaseIsRefused(t *testing.T) {
	dir := t.TempDir()
	testhost.WriteFile(t, filepath.Join(dir, ExecRecordName), fmt.Sprintf(`{"version":%d,"args":"another form"}`, execVersion+1))
	r, err := readExecRecord(dir)
	if !errors.Is(err, statedir.ErrRelease) || !strings.Contains(err.Error(), fmt.Sprintf("version %d is of another release", execVersion+1)) {
		t.Errorf("%+v, %v", r, err)
	}
}
