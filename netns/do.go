package netns

import "os"

// Do calls f on a thread that is in the network namespace. /proc/sys/net is the namespace's
// inside f. The caller needs CAP_SYS_ADMIN.
func Do(namespace *os.File, f func() error) error {
	_, err := onThread(func() (*os.File, error) {
		if err := enterNamespace(namespace); err != nil {
			return nil, err
		}
		return nil, f()
	})
	return err
}
