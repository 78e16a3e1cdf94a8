package launcher

import "os"

// partialIn are the places of transactions that have joined, or were undone, only in
// part. No thread can finish a transaction without the sandbox's mounts.
func partialIn(top *os.File) (paths []string, err error) {
	err = eachTransaction(top, func(_ int, _ *os.File, j journal) error {
		if j.State != txJoins && j.State != txUndoing {
			return nil
		}
		for _, p := range j.Places {
			paths = append(paths, p.Path)
		}
		return nil
	})
	return paths, err
}
