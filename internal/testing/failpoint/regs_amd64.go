package failpoint

import "golang.org/x/sys/unix"

// skipCall has a thread that is about to make a system call make none.
func skipCall(tid int) error {
	return changed(tid, func(r *unix.PtraceRegs) { r.Orig_rax = ^uint64(0) })
}

// setResult gives a thread the error of a system call that returns.
func setResult(tid int, err unix.Errno) error {
	return changed(tid, func(r *unix.PtraceRegs) { r.Rax = -uint64(err) })
}

func changed(tid int, change func(*unix.PtraceRegs)) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	change(&r)
	return unix.PtraceSetRegs(tid, &r)
}
