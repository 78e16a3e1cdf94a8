/* Stands for one of the two programs of a file: it prints its name and the values that a C library takes from its start. */
#include <elf.h>
#include <stdio.h>
#include <sys/auxv.h>

extern const Elf64_Ehdr __ehdr_start;
extern int _start;
static __thread int local = 40; /* from the program's own headers */
static int zeros[1 << 16];

int main(int argc, char **argv)
{
	unsigned long own = (unsigned long)&__ehdr_start;
	if (getauxval(AT_PHDR) != own + __ehdr_start.e_phoff || getauxval(AT_PHNUM) != __ehdr_start.e_phnum)
		return puts("the headers are another program's"), 1;
	if (getauxval(AT_ENTRY) != (unsigned long)&_start)
		return puts("the entry is another program's"), 1;
	for (unsigned i = 0; i < sizeof zeros / sizeof *zeros; i++)
		if (zeros[i])
			return puts("variables are not 0 at the start"), 1;
	local += 2;
	printf("%s %d", NAME, local);
	for (int i = 1; i < argc; i++)
		printf(" [%s]", argv[i]);
	puts("");
	return 0;
}
