package failpoint

import (
	"os"
	"os/exec"
)

// standardFiles are the descriptors of the command's standard streams.
func standardFiles(cmd *exec.Cmd) (files []uintptr, done func(), err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	for _, stream := range []any{cmd.Stdin, cmd.Stdout, cmd.Stderr} {
		f, ok := stream.(*os.File)
		if !ok {
			f = null
		}
		files = append(files, f.Fd())
	}
	return files, func() { null.Close() }, nil
}
