// Onefile is its own launcher, and reads a file in a sandbox.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/launcher"
)

func main() {
	launcher.Main()
	ctx := context.Background()
	m, err := sandbox.NewManager(sandbox.ManagerConfig{
		Launcher: launcher.Command(launcher.Dirs{State: os.Args[1] + "/state", Data: os.Args[1] + "/data"}),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	sb, err := m.Create(ctx, sandbox.Config{}, sandbox.Tied())
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	r, err := sb.Run(ctx, "echo $((6 * 7)) > answer; id -u")
	fmt.Printf("%s%v %s\n", r.Stdout, err, r.Isolation)
	text, err := sb.Files().ReadFile(ctx, "answer")
	fmt.Printf("%s%v\n", text, err)
}
