package autorun

// gitGroups are of version control.
func gitGroups() []group {
	return []group{
		{held: true, reason: "git uses its configuration and its hooks", when: WhenMade, patterns: []string{".git"}},
		{held: true, reason: "it makes its directory a git repository with a configuration", when: WhenBare, patterns: []string{"HEAD"}},
		{held: true, reason: "git reads programs to run from it", when: WhenRepository, patterns: []string{
			"config", "config.worktree", "commondir",
		}},
		{held: true, reason: "git runs its programs", when: WhenRepository, patterns: []string{"hooks"}},
		{held: true, reason: "git runs its programs", patterns: []string{
			"*.git/hooks", "*.git/modules/**/hooks", "*.git/worktrees/*/hooks", ".githooks", ".git-hooks", ".git_hooks", ".husky", ".huskyrc*",
			"hooks/applypatch-msg", "hooks/pre-applypatch", "hooks/post-applypatch", "hooks/pre-commit",
			"hooks/pre-merge-commit", "hooks/prepare-commit-msg", "hooks/commit-msg", "hooks/post-commit",
			"hooks/pre-rebase", "hooks/post-checkout", "hooks/post-merge", "hooks/pre-push", "hooks/pre-receive",
			"hooks/proc-receive", "hooks/post-receive", "hooks/post-update", "hooks/reference-transaction",
			"hooks/push-to-checkout", "hooks/pre-auto-gc", "hooks/post-rewrite", "hooks/sendemail-validate",
			"hooks/fsmonitor-watchman", "hooks/post-index-change",
		}},
		{held: true, reason: "git reads programs to run from it", patterns: []string{
			"*.git/config", "*.git/config.worktree", "*.git/modules/**/config", "*.git/modules/**/config.worktree",
			"*.git/worktrees/*/config", "*.git/worktrees/*/config.worktree", "*.git/worktrees/*/logs/config", ".gitconfig", ".config/git",
		}},
		{held: true, reason: "git looks for its configuration where it says", patterns: []string{
			"*.git/commondir", "*.git/modules/**/commondir", "*.git/worktrees/*/commondir", "*.git/worktrees/*/gitdir",
		}},
		{held: true, reason: "it makes a directory of references a git repository with a configuration", patterns: []string{
			"*.git/refs/**/objects", "*.git/refs/**/commondir", "*.git/logs/**/objects", "*.git/logs/**/commondir",
		}},
		{held: true, reason: "a tool that is installed as a git hook runs its commands", patterns: []string{
			".pre-commit-config.yaml", ".pre-commit-config.yml", "lefthook.y*ml", ".lefthook.y*ml", "lefthook.toml",
			".lefthook.toml", "lefthook.json", ".lefthook.json", "lefthook-local.*", ".lefthook-local.*", ".lefthook",
			".lefthook-local", ".overcommit.yml", ".simple-git-hooks.*", "simple-git-hooks.*",
		}},
		{held: true, reason: "git sends passwords where it says", patterns: []string{".git-credentials"}},
		{held: true, reason: "Mercurial reads programs to run from it", patterns: []string{".hg/hgrc", ".hg/hgrc-not-shared", ".hg/sharedpath", ".hgrc", ".config/hg"}},
		{held: true, reason: "Jujutsu reads programs to run from it", patterns: []string{
			".jj/repo", ".jj/config.toml", ".jj/workspace-config.toml", ".jjconfig.toml", ".config/jj",
		}},
		{held: true, reason: "Subversion reads programs to run from it", patterns: []string{".subversion"}},
	}
}

// shellGroups are read by a shell, at its start or in a directory.
func shellGroups() []group {
	return []group{
		{held: true, reason: "a shell runs it when it starts or ends", patterns: []string{
			".profile", ".profile.d", ".bashrc", ".bashrc.d", ".bash.d", ".bash_profile", ".bash_login", ".bash_logout",
			".bash_aliases", ".bash_completion", ".bash_functions", ".config/bash", ".local/share/bash-completion",
			".zshenv", ".zshrc", ".zshrc.d", ".zshrc.local", ".zprofile", ".zlogin", ".zlogout", ".zsh", ".oh-my-zsh",
			".zprezto", ".zpreztorc", ".zinit", ".p10k.zsh", ".config/zsh", ".config/fish", ".local/share/fish", ".cshrc",
			".tcshrc", ".login", ".logout", ".kshrc", ".mkshrc", ".shrc", ".shinit", ".yashrc", ".yash_profile",
			".config/yash", ".config/nushell", ".config/elvish", ".elvish", ".xonshrc", ".config/xonsh",
			".config/powershell", ".aliases", ".functions", ".exports", ".cargo/env", ".cargo/env.*",
		}},
		{held: true, reason: "a shell's prompt or line editor runs commands of it", patterns: []string{
			".inputrc", ".config/readline", ".config/starship.toml", ".config/atuin",
		}},
		{held: true, reason: "a tool runs it when a shell enters the directory", patterns: []string{
			".envrc", ".direnvrc", ".config/direnv", ".local/share/direnv", ".autoenv", ".autoenv.zsh", ".autoenv_leave.zsh",
			"mise.toml", ".mise.toml", "mise.*.toml", ".mise.*.toml", ".mise", "mise/config.toml", "mise/config.*.toml",
			".config/mise", ".rtx.toml", ".config/mise.toml",
		}},
		{held: true, reason: "a terminal runs commands of it", patterns: []string{
			".screenrc", ".tmux.conf", ".tmux", ".config/tmux", ".byobu", ".config/zellij", ".config/kitty",
			".config/alacritty", ".alacritty.toml", ".alacritty.yml", ".wezterm.lua", ".config/wezterm", ".config/ghostty",
			".config/foot", ".local/share/konsole", ".config/terminator",
		}},
	}
}

// sessionGroups run with a login, or open the door for one.
func sessionGroups() []group {
	return []group{
		{held: true, reason: "it decides about logins and keys", patterns: []string{
			".ssh", ".gnupg", ".rhosts", ".shosts", ".k5login", ".k5users", ".google_authenticator", ".config/Yubico",
			".pam_environment",
		}},
		{held: true, reason: "it runs with a login or a session", patterns: []string{
			".xinitrc", ".xsession", ".xsessionrc", ".xprofile", ".xserverrc", ".Xclients", ".gnomerc", ".config/autostart",
			".config/autostart-scripts", ".config/environment.d", ".config/plasma-workspace", ".config/user-dirs.dirs",
			".config/i3", ".i3", ".config/sway", ".config/hypr", ".config/awesome", ".config/bspwm", ".config/sxhkd",
			".config/openbox", ".config/qtile", ".config/niri", ".config/river", ".config/labwc", ".xmonad",
			".config/xmonad", ".fluxbox", ".xbindkeysrc", ".local/share/gnome-shell/extensions", ".local/share/plasma",
			".local/share/kwin",
		}},
		{held: true, reason: "systemd or D-Bus runs it for the user", patterns: []string{
			".config/systemd", ".local/share/systemd", ".local/share/dbus-1", ".config/user-tmpfiles.d", ".config/containers/systemd",
		}},
		{held: true, reason: "mail that comes runs it", patterns: []string{".forward", ".procmailrc", ".maildroprc", ".mailfilter", ".qmail*"}},
	}
}

// editorGroups are used when an editor or a coding agent starts.
func editorGroups() []group {
	return []group{
		{held: true, reason: "an editor runs it or its commands when it opens the directory", patterns: []string{
			".vscode/tasks.json", ".vscode/settings.json", ".vscode/mcp.json", "*.code-workspace", ".idea/workspace.xml",
			".idea/startup.xml", ".idea/watcherTasks.xml", ".idea/externalDependencies.xml", ".exrc", ".lvimrc",
			".local.vimrc", ".vimrc.local", ".nvim.lua", ".nvimrc", ".dir-locals.el", ".dir-locals-2.el", ".helix",
			".zed/tasks.json", ".zed/settings.json", ".zed/debug.json", ".projectile", ".kakrc",
		}},
		{held: true, reason: "an editor runs it when it starts", patterns: []string{
			".vimrc", ".gvimrc", ".vim", ".config/vim", ".config/nvim", ".local/share/nvim", ".emacs", ".emacs.el", ".emacs.d",
			".config/emacs", ".doom.d", ".config/doom", ".spacemacs", ".spacemacs.d", ".config/helix", ".config/kak",
			".config/micro", ".config/zed", ".config/sublime-text", ".config/Code", ".config/Code - OSS", ".config/VSCodium",
			".config/Cursor", ".config/JetBrains", ".local/share/JetBrains", ".vscode/extensions", ".vscode-oss",
			".vscode-server", ".vscode-remote", ".cursor/extensions", ".cursor-server", ".ideavimrc",
		}},
		{held: true, reason: "a coding agent runs its commands, or takes rights from it", patterns: []string{
			".claude/settings*.json", ".claude/hooks", ".claude.json", ".claude/plugins", ".claude/statusline*", ".mcp.json",
			".cursor/mcp.json", ".cursor/hooks.json", ".cursor/hooks", ".cursor/cli.json", ".cursor/environment.json",
			".gemini/settings.json", ".gemini/extensions", ".gemini/hooks", ".codex/config.toml", ".codex/hooks*",
			".config/opencode", "opencode.json", "opencode.jsonc", ".opencode", ".continue", ".aider.conf.yml", ".kiro/hooks",
			".kiro/settings", ".roo/mcp.json", ".codeium", ".windsurf/hooks.json", ".config/goose", ".amazonq/mcp.json",
			".copilot/mcp-config.json", ".github/hooks", ".crush.json", "crush.json", ".factory/hooks", ".factory/mcp.json", ".qwen/settings.json",
		}},
	}
}

// startGroups are used when a program starts that is not thought to run files.
func startGroups() []group {
	return []group{
		{held: true, reason: "a debugger runs it when it starts", patterns: []string{
			".gdbinit", ".gdbearlyinit", ".config/gdb", ".lldbinit", ".lldbinit-*", ".pdbrc", ".pdbrc.py", ".perldb", ".radare2rc", ".config/radare2",
		}},
		{held: true, reason: "an interpreter runs it when it starts", patterns: []string{
			".local/lib/python*/site-packages/*.pth", ".local/lib/python*/site-packages/sitecustomize.py",
			".local/lib/python*/site-packages/usercustomize.py", ".pythonrc", ".pythonrc.py", ".pystartup", ".ipython",
			".jupyter", ".local/share/jupyter", ".irbrc", ".pryrc", ".config/irb", ".Rprofile", ".Renviron", ".ghci", ".ocamlinit", ".utoprc",
			".julia/config", ".octaverc", ".guile", ".sbclrc", ".lein", ".clojure", ".iex.exs", ".erlang", ".psysh.php",
		}},
		{held: true, reason: "a database client runs commands of it when it starts", patterns: []string{
			".psqlrc", ".psqlrc-*", ".sqliterc", ".config/sqlite3", ".my.cnf", ".mongorc.js", ".mongoshrc.js", ".duckdbrc",
		}},
		{held: true, reason: "a mail client, a pager or a viewer runs commands of it", patterns: []string{
			".mailcap", ".muttrc", ".mutt", ".config/mutt", ".neomuttrc", ".config/neomutt", ".mailrc", ".lessfilter",
			".lesskey", ".lesshst.sh", ".config/lesskey", ".config/ranger", ".config/lf", ".config/nnn", ".config/mpv",
		}},
		{held: true, reason: "each transfer follows it, so it can lead data and passwords elsewhere", patterns: []string{
			".netrc", ".curlrc", ".config/curlrc", ".wgetrc", ".wget2rc",
		}},
		{held: true, reason: "a client runs programs of it to log in", patterns: []string{".docker/config.json", ".kube", ".aws/config", ".config/containers"}},
	}
}

// systemGroups are of the whole host, for an overlay of / or of /etc.
func systemGroups() []group {
	return []group{
		{held: true, reason: "cron or at runs it", patterns: []string{
			"/etc/cron*", "/etc/anacrontab", "/etc/at.*", "/var/spool/cron", "/var/spool/at", "/var/spool/anacron", "/var/spool/incron",
			"/etc/incron.d", ".crontab",
		}},
		{held: true, reason: "the host runs it when it starts", patterns: []string{
			"/boot", "/etc/systemd", "/usr/lib/systemd", "/lib/systemd", "/usr/local/lib/systemd", "/usr/share/systemd", "/etc/init.d", "/etc/init",
			"/etc/rc*.d", "/etc/rc.local", "/etc/rc.d", "/etc/inittab", "/etc/runit", "/etc/sv", "/etc/s6", "/etc/local.d",
			"/etc/conf.d", "/etc/tmpfiles.d", "/usr/lib/tmpfiles.d", "/etc/sysusers.d", "/usr/lib/sysusers.d", "/etc/sysctl.conf",
			"/etc/sysctl.d", "/usr/lib/sysctl.d", "/etc/modprobe.d", "/usr/lib/modprobe.d", "/etc/modules",
			"/etc/modules-load.d", "/usr/lib/modules-load.d", "/lib/modules", "/usr/lib/modules", "/etc/binfmt.d",
			"/usr/lib/binfmt.d", "/etc/fstab", "/etc/crypttab", "/etc/default", "/etc/sysconfig", "/etc/initramfs-tools", "/etc/dracut.conf*",
			"/etc/mkinitcpio*", "/etc/kernel", "/usr/lib/kernel", "/etc/grub.d", "/etc/default/grub",
		}},
		{held: true, reason: "the host runs it at an event", patterns: []string{
			"/etc/udev", "/usr/lib/udev", "/lib/udev", "/etc/acpi", "/etc/NetworkManager", "/usr/lib/NetworkManager",
			"/etc/network", "/etc/networkd-dispatcher", "/etc/dhcp", "/etc/ppp", "/etc/logrotate.conf", "/etc/logrotate.d",
			"/etc/apt/apt.conf", "/etc/apt/apt.conf.d", "/etc/dpkg", "/etc/yum*", "/etc/dnf", "/etc/pacman*", "/etc/pm",
			"/etc/apparmor.d", "/etc/dbus-1", "/usr/share/dbus-1", "/etc/inetd.conf", "/etc/xinetd*", "/etc/update-motd.d",
			"/etc/docker", "/etc/containerd", "/etc/cni",
		}},
		{held: true, reason: "each program or shell of the host uses it", patterns: []string{
			"/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.cache", "/etc/ld-musl-*.path",
			"/etc/environment", "/etc/profile", "/etc/profile.d", "/etc/bash*", "/etc/zsh*", "/etc/zprofile", "/etc/zlogin",
			"/etc/zlogout", "/etc/fish", "/etc/csh*", "/etc/ksh*", "/etc/mkshrc", "/etc/inputrc", "/etc/gitconfig", "/etc/vim",
			"/etc/emacs", "/etc/screenrc", "/etc/tmux.conf", "/etc/python*", "/etc/xdg", "/etc/X11", "/etc/skel", "/etc/shells",
			"/etc/nsswitch.conf", "/etc/alternatives", "/etc/mailcap", "/etc/aliases", "/etc/gai.conf",
			"/usr/lib/python*/sitecustomize.py", "/usr/lib/python*/dist-packages/*.pth", "/usr/local/lib/python*/dist-packages/*.pth",
		}},
		{held: true, reason: "it decides about users, logins and rights of the host", patterns: []string{
			"/etc/passwd*", "/etc/shadow*", "/etc/group*", "/etc/gshadow*", "/etc/subuid*", "/etc/subgid*", "/etc/sudo.conf",
			"/etc/sudoers", "/etc/sudoers.d", "/etc/doas.conf", "/etc/doas.d", "/etc/pam.conf", "/etc/pam.d", "/etc/security",
			"/etc/login.defs", "/etc/ssh", "/etc/hosts.equiv", "/etc/hosts.allow", "/etc/hosts.deny", "/etc/polkit-1",
			"/usr/share/polkit-1", "/etc/krb5.conf", "/etc/krb5.keytab", "/etc/sssd", "/etc/ssl", "/etc/ca-certificates*",
			"/etc/pki", "/etc/selinux", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates",
		}},
	}
}
