package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/sandboxtest"
)

// A sandbox for shell lines, removed at the end.
func Example() {
	ctx := context.Background()
	m, err := sandbox.NewManager(sandbox.ManagerConfig{})
	if err != nil {
		log.Fatal(err) // says what the host lacks
	}
	defer m.Close()
	sb, err := m.Create(ctx, sandbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()

	result, err := sb.Run(ctx, "echo $((6 * 7)); id -u; cat /etc/shadow")
	if err != nil {
		log.Fatal(err) // the sandbox failed; whatever the line did is in the result
	}
	fmt.Printf("%s%s%s\n", result.Stdout, result.Stderr, result.Reason)
	// Output:
	// 42
	// 1000
	// cat: /etc/shadow: No such file or directory
	// the command ended with exit code 1
}

// A timeout is a result, not an error, and the sandbox lives on.
func ExampleSandbox_Exec() {
	ctx := context.Background()
	sb, done := exampleSandbox(ctx)
	defer done()

	result, err := sb.Exec(ctx, sandbox.Command{
		Args: []string{"sleep", "60"}, Timeout: time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %s\n", result.Status, result.Reason)
	result, err = sb.Exec(ctx, sandbox.Command{Args: []string{"no-such-program"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %s\n", result.Status, result.Reason)
	// Output:
	// timed_out, the command was still running after 1s and ended after SIGTERM
	// error, no-such-program: not found in the sandbox
}

// Output as it comes, and input.
func ExampleSandbox_Start() {
	ctx := context.Background()
	sb, done := exampleSandbox(ctx)
	defer done()

	p, err := sb.Start(ctx, sandbox.Command{
		Args: []string{"sed", "s/^/> /"}, Stdin: strings.NewReader("one\ntwo\n"), Stdout: os.Stdout,
	})
	if err != nil {
		log.Fatal(err)
	}
	result, err := p.Wait()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.OK())
	// Output:
	// > one
	// > two
	// true
}

// What a sandbox does to a directory is looked at before it is done.
func ExampleSandbox_Changes() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "proj")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(dir+"/README", []byte("one\n"), 0o644); err != nil {
		log.Fatal(err)
	}
	m, err := sandbox.NewManager(sandbox.ManagerConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	sb, err := m.Create(ctx, sandbox.Config{Workspace: dir, Overlays: []string{dir}})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	if _, err := sb.Run(ctx, "echo two >> README; mkdir src; echo new > src/new; echo > scratch"); err != nil {
		log.Fatal(err)
	}

	changes, err := sb.Changes(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer changes.Close()
	for c, err := range changes.List(sandbox.ListOptions{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(c.Kind, strings.TrimPrefix(c.Path, dir))
	}
	done, err := changes.Apply(ctx, sandbox.ApplyOptions{Paths: []string{"README", "src"}})
	if err != nil {
		log.Fatal(err) // a *sandbox.ConflictError, if the host has changed meanwhile
	}
	text, err := os.ReadFile(dir + "/README")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("applied %d: %q\n", len(done.Changes), text)
	// Output:
	// modified /README
	// created /scratch
	// created /src
	// created /src/new
	// applied 3: "one\ntwo\n"
}

// A command that goes on without this program, and is taken up again by its id,
// as by another program.
func ExampleSandbox_Attach() {
	ctx := context.Background()
	sb, done := exampleSandbox(ctx)
	defer done()

	p, err := sb.Start(ctx, sandbox.Command{Args: []string{"sh", "-c", "echo first; sleep 0.2; echo last"}, Detached: true})
	if err != nil {
		log.Fatal(err)
	}
	id := p.ID()
	p.Close() // lets go of it

	again, err := sb.Attach(ctx, id, os.Stdout, nil)
	if err != nil {
		log.Fatal(err)
	}
	result, err := again.Wait()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Status)
	// Output:
	// first
	// last
	// exited
}

// A sandbox with a name is found again.
func ExampleManager_Up() {
	ctx := context.Background()
	m, err := sandbox.NewManager(sandbox.ManagerConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	for range 2 {
		sb, err := m.Up(ctx, "agent-1", sandbox.Config{})
		if err != nil {
			log.Fatal(err)
		}
		result, err := sb.Run(ctx, "echo line >> notes; wc -l < notes")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s", result.Stdout)
	}
	if err := m.Remove(ctx, "agent-1"); err != nil {
		log.Fatal(err)
	}
	_, err = m.Get(ctx, "agent-1")
	fmt.Println(errors.Is(err, sandbox.ErrNotFound))
	// Output:
	// 1
	// 2
	// true
}

// A program that embeds sandboxes is tested without any.
func Example_fake() {
	ctx := context.Background()
	fake := &sandboxtest.Fake{Run: func(_ context.Context, p *sandboxtest.Program) int {
		fmt.Fprintln(p.Stdout, "2 tests failed")
		return 1
	}}
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Providers: []sandbox.Provider{fake}, Prefer: []string{"fake"}})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	sb, err := m.Create(ctx, sandbox.Config{Workspace: "./proj"})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	result, err := sb.Run(ctx, "npm test")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s%s, isolation %s\n", result.Stdout, result.Reason, result.Isolation)
	fmt.Println(fake.Commands()[0].Args)
	// Output:
	// 2 tests failed
	// the command ended with exit code 1, isolation none
	// [/bin/sh -c npm test]
}

// Without isolation, which has to be asked for by name.
func Example_local() {
	ctx := context.Background()
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Prefer: []string{sandbox.ProviderLocal}})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	sb, err := m.Create(ctx, sandbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	result, err := sb.Run(ctx, "echo on the host")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%sisolation: %s\n", result.Stdout, result.Isolation)
	// Output:
	// on the host
	// isolation: none
}

// exampleSandbox is a sandbox and what removes it.
func exampleSandbox(ctx context.Context) (*sandbox.Sandbox, func()) {
	m, err := sandbox.NewManager(sandbox.ManagerConfig{})
	if err != nil {
		log.Fatal(err)
	}
	sb, err := m.Create(ctx, sandbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	return sb, func() {
		if err := errors.Join(sb.Close(), m.Close()); err != nil {
			log.Fatal(err)
		}
	}
}
