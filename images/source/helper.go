package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	maxHelper = 1 << 20
	// helperTimeout bounds a credential helper. One that waits for a person would make pulls of public images wait, too.
	helperTimeout = 10 * time.Second
)

// askHelper runs docker-credential-NAME of the caller's PATH (the protocol of docker-credential-helpers).
func askHelper(ctx context.Context, helper, server string) (Credential, bool, error) {
	if helper == "" || strings.ContainsAny(helper, "/\x00") {
		return Credential{}, false, fmt.Errorf("invalid credential helper %q: use the part behind docker-credential-", helper)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, helperTimeout, fmt.Errorf("it did not answer within %v", helperTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker-credential-"+helper, "get")
	cmd.Stdin = strings.NewReader(server)
	out := &boundedBuffer{limit: maxHelper}
	cmd.Stdout = out
	// The group has the programs that the helper starts. Without a terminal a question for a password fails at once.
	// The helper ends with a killed client. For this the thread that starts the helper must live.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the answer is there, and a program that the helper has left has its output open
	}
	if err != nil && strings.Contains(out.String(), "credentials not found") {
		return Credential{}, false, nil
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return Credential{}, false, fmt.Errorf("credential helper %s: %w", cmd.Args[0], err)
	}
	var answer struct{ Username, Secret string }
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		return Credential{}, false, fmt.Errorf("credential helper %s: the answer is not JSON", cmd.Args[0])
	}
	if answer.Username == "<token>" {
		return Credential{IdentityToken: answer.Secret}, true, nil
	}
	return Credential{Username: answer.Username, Password: answer.Secret}, true, nil
}

// A boundedBuffer is a buffer with a limit.
type boundedBuffer struct {
	bytes.Buffer
	limit int
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.limit {
		return 0, fmt.Errorf("more than %d bytes", b.limit)
	}
	return b.Buffer.Write(p)
}
