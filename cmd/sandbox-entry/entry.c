/*
 * The entry of bin/sandbox-runtime. The file has two programs at different addresses: the whole one,
 * and the OCI program, which starts in half the time (docs/adr/0001). The kernel maps both. The entry
 * chooses one by the arguments, and jumps to its start. The pages of the other one are never touched.
 *
 * The choice is only about speed: the whole program has all commands, and the OCI program executes the
 * whole one for all that it does not know.
 *
 * No library is initialised here, so no function of one can be called.
 */
#include <asm/unistd.h>
#include <elf.h>

/* The first bytes of the two programs: see scripts/join. */
extern const char oci_program[], whole_program[];

/* Commands of the OCI program. "init" is that of libcontainer, and "seccomp-filter" that of internal/container. */
static const char *const commands[] = {
	"init", "create", "start", "run", "state", "kill", "delete", "exec",
	"events", "features", "spec", "checkpoint", "restore", "seccomp-filter", 0,
};

/* Global flags that the OCI program knows, with and without a value. */
static const char *const valued[] = { "root", "log", "log-format", "rootless", 0 };
static const char *const plain[] = { "debug", "systemd-cgroup", 0 };

/* The whole program follows the OCI program: commandline.WholeVariable. */
static const char whole_variable[] = "_SANDBOX_RUNTIME_WHOLE=";

/* after returns the rest of a text behind a prefix, or NULL. */
static const char *after(const char *prefix, const char *text)
{
	while (*prefix)
		if (*prefix++ != *text++)
			return 0;
	return text;
}

static int is(const char *word, const char *text)
{
	const char *rest = after(word, text);
	return rest && !*rest;
}

static int is_one_of(const char *const *words, const char *text)
{
	for (; *words; words++)
		if (is(*words, text))
			return 1;
	return 0;
}

/* has_value says that a flag is one of the words, followed by "=" and a value. */
static int has_value(const char *const *words, const char *flag)
{
	for (; *words; words++) {
		const char *rest = after(*words, flag);
		if (rest && *rest == '=')
			return 1;
	}
	return 0;
}

/* The state of sandboxes, below the state root (internal/launcher/record), and the state root of root without --root. */
static const char sandboxes[] = "/@sandboxes/", default_root[] = "/run/sandbox-runtime";

static long system_call(long number, const char *path, long mode)
{
	long result = number;

	__asm__ volatile("syscall" : "+a"(result) : "D"(path), "S"(mode) : "rcx", "r11", "memory");
	return result;
}

/* names_sandbox says that the state root has a sandbox of this name. */
static int names_sandbox(const char *root, const char *name)
{
	const char *const parts[] = { root, sandboxes, name };
	char path[4096];
	unsigned length = 0;

	for (int i = 0; i < 3; i++)
		for (const char *from = parts[i]; *from; from++) {
			if (length == sizeof path - 1 || (i == 2 && *from == '/'))
				return 0;
			path[length++] = *from;
		}
	path[length] = 0;
	return *name && system_call(__NR_access, path, 0) == 0;
}

/* has_sandbox says that one of the first words names a sandbox. Some words are values of flags. */
static int has_sandbox(const char *root, char **args)
{
	for (int words = 0; *args && words < 8; args++)
		if (**args != '-') {
			words++;
			if (names_sandbox(root, *args))
				return 1;
		}
	return 0;
}

static int is_for_oci(char **args)
{
	const char *root = 0;
	int as_runc = 0; /* flags of runc for logs: the caller means no sandbox of a launcher */

	for (; *args && **args == '-'; args++) {
		const char *flag = *args + 1, *value;
		if (*flag == '-')
			flag++;
		if (is("version", flag) || is("v", flag))
			return 1;
		if (after("log", flag) || is("debug", flag))
			as_runc = 1;
		if ((value = after("root=", flag)))
			root = value;
		if (is_one_of(valued, flag)) {
			if (!*++args)
				return 0;
			if (is("root", flag))
				root = *args;
		} else if (!is_one_of(plain, flag) && !has_value(valued, flag))
			return 0;
	}
	if (!*args || !is_one_of(commands, *args))
		return 0;
	if (!root && !as_runc && system_call(__NR_geteuid, 0, 0) != 0)
		return 0; /* an ordinary user has sandboxes of a launcher */
	return !has_sandbox(root ? root : default_root, args + 1);
}

static int is_set(const char *variable, char **environment)
{
	for (; *environment; environment++)
		if (after(variable, *environment))
			return 1;
	return 0;
}

/*
 * choose_program returns the start of the program to run. stack is the stack that the kernel gives to a new
 * process: the number of arguments, the arguments, the environment, the auxiliary vector. A C library
 * finds the program's headers through this vector (getauxval(3)), for its thread-local storage.
 */
__attribute__((used)) static unsigned long choose_program(unsigned long *stack)
{
	unsigned long count = *stack;
	char **args = (char **)(stack + 1), **environment = args + count + 1, **end = environment;
	int oci = count > 0 && is_for_oci(args + 1) && !is_set(whole_variable, environment);
	const Elf64_Ehdr *program = (const Elf64_Ehdr *)(oci ? oci_program : whole_program);

	while (*end)
		end++;
	for (Elf64_auxv_t *aux = (Elf64_auxv_t *)(end + 1); aux->a_type != AT_NULL; aux++) {
		switch (aux->a_type) {
		case AT_PHDR:
			aux->a_un.a_val = (unsigned long)program + program->e_phoff;
			break;
		case AT_PHNUM:
			aux->a_un.a_val = program->e_phnum;
			break;
		case AT_ENTRY:
			aux->a_un.a_val = program->e_entry;
			break;
		}
	}
	return program->e_entry;
}

/*
 * The start of a program finds the stack as the kernel made it. rdx is 0: no function to call at the
 * end (System V ABI, AMD64 supplement, 3.4.1 "Initial Stack and Register State").
 */
__asm__(".globl _start\n"
	".type _start, @function\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"
	"	mov %rsp, %rbx\n"
	"	mov %rsp, %rdi\n"
	"	and $-16, %rsp\n"
	"	call choose_program\n"
	"	mov %rbx, %rsp\n"
	"	xor %edx, %edx\n"
	"	jmp *%rax\n");
