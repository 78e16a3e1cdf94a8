package commandline

import (
	"slices"

	"github.com/urfave/cli/v3"
)

// Docker's words that this program does not have, and its own words for the same things.

// HintOfRun names our command for docker run: the command run is runc's.
const HintOfRun = "run makes an OCI container from a bundle; for a command in a sandbox of its own: do -- COMMAND, with an image: do --image NAME -- COMMAND"

// dockerFlags are names of flags, with the names of our flags.
var dockerFlags = map[string]string{
	"m": "memory", "p": "publish", "u": "user", "d": "detach", "h": "hostname", "v": "bind", "w": "cwd", "e": "env",
	"volume": "bind", "mount": "bind", "workdir": "cwd", "net": "network", "expose": "publish",
	"pids-limit": "pids", "tmpfs-size": "shm-size", "cpu-quota": "cpus", "security-opt": "seccomp", "stop-timeout": "grace",
	"t": "tty", "i": "interactive", "a": "all", "f": "follow", "n": "tail",
}

// dockerHabits are the ways to the effect of flags that a command does not need, or has in another form.
var dockerHabits = map[string]map[string]string{
	"do": {
		"rm":         "leave it out: do removes the sandbox at the end; --keep leaves the sandbox up",
		"d":          "do waits for its command; for a command in the background: up NAME, and then exec --detach NAME COMMAND",
		"detach":     "do waits for its command; for a command in the background: up NAME, and then exec --detach NAME COMMAND",
		"name":       "a sandbox with a name is made by: up NAME",
		"privileged": "nothing in a sandbox has privileges",
		"read-only":  "leave it out: all but the workspace, the home and /tmp is read-only already",
	},
	"up": {
		"rm":         "leave it out: down NAME removes the sandbox",
		"d":          "leave it out: the sandbox of up stays up in any case",
		"detach":     "leave it out: the sandbox of up stays up in any case",
		"name":       "the name is the last word, without a flag, as in: up box",
		"privileged": "nothing in a sandbox has privileges",
		"read-only":  "leave it out: all but the workspace, the home and /tmp is read-only already",
	},
	"exec": {
		"rm":         "leave it out: the sandbox stays when the command ends; down NAME removes the sandbox",
		"name":       "the name of the sandbox comes before the command, as in: exec box make test",
		"privileged": "nothing in a sandbox has privileges",
	},
	"run":   {"": HintOfRun},
	"image": {"input": "use: image import FILE", "i": "use: image import FILE"},
	"import": {
		"change":  "an import changes no settings; give them at the use, as in: do --image NAME --env A=b --user 1 -- COMMAND",
		"c":       "an import changes no settings; give them at the use, as in: do --image NAME --env A=b --user 1 -- COMMAND",
		"message": "leave it out: images have no messages", "m": "leave it out: images have no messages",
		"input": "the file is a word, without a flag, as in: image import FILE", "i": "the file is a word, without a flag, as in: image import FILE",
	},
	"down": {"f": "leave it out: down ends all processes in any case", "force": "leave it out: down ends all processes in any case"},
}

// dockerCommands are names of commands, with our command lines.
var dockerCommands = map[string]string{
	"rm": "down NAME", "remove": "down NAME", "stop": "down NAME", "destroy": "down NAME",
	"rmi": "image rm NAME", "images": "image ls", "pull": "image pull NAME", "import": "image import FILE", "load": "image import FILE",
	"version": "--version", "info": "doctor", "top": "ps NAME", "unpause": "resume NAME", "commit": "snapshot NAME SNAP",
	"shell": "exec -it NAME sh", "ls": "list", "port": "inspect NAME",
	"restart": "down NAME, and then up NAME", "build": "image import DIR, for a root file system that another program has built",
	"system": "prune",
}

// dockerFlag is the end of the sentence about an unknown flag: the place of a global flag, our word for a flag of
// Docker's, or nothing.
func dockerFlag(cmd *cli.Command, name string) string {
	habits := dockerHabits[cmd.Name]
	if way, ok := habits[name]; ok {
		return "; " + way
	}
	if slices.Contains(FlagNames(GlobalFlags()), name) {
		return "; it comes before the command, as in: " + Program + " --" + name + " … " + cmd.Name
	}
	known := FlagNames(cmd.Flags)
	if flag := dockerFlags[name]; slices.Contains(known, flag) {
		return "; did you mean --" + flag + "?"
	}
	if way, ok := habits[""]; ok {
		return "; " + way
	}
	if len(name) == 1 { // every short name is like any other
		return ""
	}
	return DidYouMean(known, name, "--")
}

// CommandLike is the end of the sentence about an unknown command: our command line for a command of
// Docker's, or the nearest name.
func CommandLike(names []string, typed string) string {
	if line, ok := dockerCommands[typed]; ok {
		return "; the command is: " + Program + " " + line
	}
	return DidYouMean(names, typed, "")
}
