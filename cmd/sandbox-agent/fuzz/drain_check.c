/*
 * drain_check.c - the file of a stream, with a clock and output of the test's choice.
 *
 * SYNOPSIS
 *	drain_check <records >answers 3<>file
 *
 * A record on stdin is its size, the second of the clock and a number of bytes, which the
 * stream then gets. Byte n of the stream is n % 251. The first record has the limit in place
 * of the second. Each record is answered with one byte on stdout.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <time.h>

static time_t second;

/* fake_clock takes the place of clock_gettime(2). */
static int fake_clock(clockid_t clock, struct timespec *t)
{
	(void)clock;
	t->tv_sec = second;
	t->tv_nsec = 0;
	return 0;
}

#define clock_gettime fake_clock
#undef _GNU_SOURCE /* drain.c defines it, too */
#include "../drain.c"

enum { STREAM = 1, PERIOD = 251 }; /* whose file is descriptor 3 */

static void give(uint32_t size)
{
	static char bytes[1 << 16];
	uint64_t at = streams[STREAM].header.total;

	if (size > sizeof(bytes))
		size = sizeof(bytes);
	for (uint32_t i = 0; i < size; i++)
		bytes[i] = (char)((at + i) % PERIOD);
	keep(STREAM, bytes, size);
}

int main(void)
{
	struct { uint32_t size, bytes; uint64_t second; } record;
	bool first = true;

	(void)drain;
	while (fread(&record, sizeof(record), 1, stdin) == 1) {
		second = (time_t)record.second;
		if (first)
			streams[STREAM].header = (struct output_header){
				.head = record.second - record.second / 2, .tail = record.second / 2,
			};
		else
			give(record.bytes);
		first = false;
		putchar(1);
		fflush(stdout);
	}
	return 0;
}
