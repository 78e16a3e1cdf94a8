/*
 * notify.c - tells the host about refused calls.
 *
 * The sandbox's filter refuses most calls by itself, and tells nobody. A few calls that
 * programs cannot do without wait for the agent's EPERM (seccomp_unotify(2)). The agent
 * never lets a call through, and never reads the memory of the caller. Without the agent
 * the kernel answers ENOSYS. One turn of the loop answers one call, so that a process with
 * many calls holds up no other work.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/ioctl.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exec.h"
#include "filter.h"
#include "loop.h"
#include "notify.h"
#include "protocol.h"
#include "start.h"

enum { CALL_PIDFD_GETFD = 438 }; /* the same on all architectures */

static uint32_t refusal_of(int call)
{
	switch (call) {
	case SYS_ptrace:
	case SYS_process_vm_readv:
	case SYS_process_vm_writev:
	case SYS_kcmp:
	case CALL_PIDFD_GETFD:
		return REFUSED_TRACE;
	case SYS_perf_event_open:
		return REFUSED_PERF;
	case SYS_bpf:
		return REFUSED_BPF;
	case SYS_clone:
	case SYS_unshare:
	case SYS_setns:
		return REFUSED_NAMESPACE;
	case SYS_mount:
	case SYS_umount2:
		return REFUSED_MOUNT;
	}
	return 0;
}

void notify_open(void)
{
	if (filter_listener() >= 0 && !loop_watch(filter_listener(), FROM_NOTIFY))
		die(STAGE_LOOP, errno);
}

/*
 * notify_serve: a later kernel may write longer structs. The caller can be killed at any
 * time, and then each step here fails. The caller is in the session of its exec, unless it
 * has made a session of its own.
 */
void notify_serve(void)
{
	union {
		struct seccomp_notif notif;
		char room[512];
	} call;
	union {
		struct seccomp_notif_resp resp;
		char room[512];
	} answer;

	memset(&call, 0, sizeof(call));
	memset(&answer, 0, sizeof(answer));
	if (syscall(SYS_ioctl, filter_listener(), SECCOMP_IOCTL_NOTIF_RECV, &call) < 0)
		return;
	exec_refused(getsid((pid_t)call.notif.pid), refusal_of(call.notif.data.nr));
	answer.resp.id = call.notif.id;
	answer.resp.error = -EPERM;
	syscall(SYS_ioctl, filter_listener(), SECCOMP_IOCTL_NOTIF_SEND, &answer);
}
