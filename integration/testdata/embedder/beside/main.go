// Beside has sandbox-runtime in the PATH as its launcher.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func main() {
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Launcher: []string{
		"sandbox-runtime", "--root", os.Args[1] + "/state", "--data", os.Args[1] + "/data", "launcher", "--fd", "3",
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	sb, err := m.Create(context.Background(), sandbox.Config{}, sandbox.Tied())
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	r, err := sb.Run(context.Background(), "echo $((6 * 7)); id -u")
	fmt.Printf("%s%v %s\n", r.Stdout, err, r.Isolation)
}
