/*
 * modes.c - makes each call that takes the mode of a file, with a mode, and prints the error
 * number of each. Its arguments are an empty directory and an octal mode.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void tell(const char *call, long result)
{
	printf("%s %d\n", call, result < 0 ? errno : 0);
}

int main(int argc, char **argv)
{
	/* The kernel reads the lower half of an argument. */
	unsigned long mode, high = 1UL << 32;
	int fd;

	if (argc != 3 || chdir(argv[1]) < 0)
		return 1;
	mode = strtoul(argv[2], NULL, 8);
	fd = open("file", O_CREAT | O_RDWR, 0644);
	if (fd < 0 || mkdir("directory", 0755) < 0)
		return 1;
	tell("fchmod", syscall(SYS_fchmod, fd, mode));
	tell("fchmod, high", syscall(SYS_fchmod, fd, mode | high));
	tell("fchmodat", syscall(SYS_fchmodat, AT_FDCWD, "file", mode));
	tell("fchmodat, directory", syscall(SYS_fchmodat, AT_FDCWD, "directory", mode));
	tell("fchmodat2", syscall(452, AT_FDCWD, "file", mode, 0));
	tell("mknodat", syscall(SYS_mknodat, AT_FDCWD, "a", S_IFREG | mode, 0));
	tell("openat", syscall(SYS_openat, AT_FDCWD, "b", O_CREAT | O_RDWR, mode));
	tell("openat, nameless", syscall(SYS_openat, AT_FDCWD, ".", O_TMPFILE | O_RDWR, mode));
	tell("openat, not new", syscall(SYS_openat, AT_FDCWD, ".", O_DIRECTORY | O_RDONLY, mode));
#ifdef SYS_chmod
	tell("chmod", syscall(SYS_chmod, "file", mode));
	tell("creat", syscall(SYS_creat, "c", mode));
	tell("mknod", syscall(SYS_mknod, "d", S_IFREG | mode, 0));
	tell("open", syscall(SYS_open, "e", O_CREAT | O_RDWR, mode));
	tell("open, not new", syscall(SYS_open, "file", O_RDONLY, mode));
	/* A kernel without x32 answers ENOSYS, unless a filter has an answer. */
	tell("x32 chmod", syscall(SYS_chmod | 0x40000000, "file", mode) < 0 && errno == ENOSYS ? 0 : -1);
#endif
	return 0;
}
