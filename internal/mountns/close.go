package mountns

import "os"

// CloseFiles closes all of them; they may be closed already.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
