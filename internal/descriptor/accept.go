package descriptor

import (
	"errors"
	"net"
	"time"
)

// The pauses after errors of accept4(2), such as that of too many open files. Each is twice the one before.
const (
	firstAcceptPause   = time.Millisecond
	longestAcceptPause = 100 * time.Millisecond
)

// AcceptAll calls serve with each connection that accept returns. It ends with the error of a closed listener
// ([net.ErrClosed]) or with the error that failed returns. After each other error it tries again in a moment. failed
// can be nil.
func AcceptAll[C any](accept func() (C, error), serve func(C), failed func(error) error) error {
	for pause := firstAcceptPause; ; {
		c, err := accept()
		if err == nil {
			pause = firstAcceptPause
			serve(c)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if failed != nil {
			if err := failed(err); err != nil {
				return err
			}
		}
		time.Sleep(pause)
		pause = min(2*pause, longestAcceptPause)
	}
}
