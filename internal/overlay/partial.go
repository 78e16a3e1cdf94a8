package overlay

import "os"

// PartialIn are the places of transactions that have joined, or were undone, only in
// part. No thread can finish a transaction without the sandbox's mounts.
func PartialIn(top *os.File) (paths []string, err error) {
	err = eachTransaction(top, func(_ int, _ *os.File, j Journal) error {
		if j.State != TxJoins && j.State != txUndoing {
			return nil
		}
		for _, p := range j.Places {
			paths = append(paths, p.Path)
		}
		return nil
	})
	return paths, err
}
