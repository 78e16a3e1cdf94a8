// end_with_main_thread has this process end when its main thread ends, which is the caller. The
// status is then that of a process killed by SIGSYS. It returns an error number.
int end_with_main_thread(void);
