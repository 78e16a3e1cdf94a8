package hostpaths

import "slices"

// Secrets are paths in a home directory with content for its user alone, above all keys
// and sessions. Below an overlay they are shown empty, and cannot be written to. A bind
// of the user's own shows a secret that a command needs.
//
// Where a directory holds more than secrets, the list has the files with the secrets,
// so that the programs of an overlaid home work.
func Secrets() []string {
	var all []string
	for _, group := range SecretGroups() {
		all = append(all, group.Names...)
	}
	return all
}

// A SecretGroup is secrets of one kind, relative to a home directory.
type SecretGroup struct {
	Of    string
	Names []string
}

// SecretGroups are all secrets, by their kinds.
func SecretGroups() []SecretGroup { return slices.Concat(secretsOfAccounts(), secretsOfPrograms()) }

// secretsOfAccounts open hosts and services.
func secretsOfAccounts() []SecretGroup {
	return []SecretGroup{
		{"keys and logins", []string{
			".ssh", ".gnupg", ".netrc", "_netrc", ".authinfo", ".authinfo.gpg", ".Xauthority", ".ICEauthority",
			".k5identity", ".putty", ".config/putty", ".pki", ".step", ".age", ".config/age", ".config/sops",
			".minisign", ".signify", ".google_authenticator", ".config/Yubico", ".msmtprc", ".config/msmtp",
			".fetchmailrc", ".mbsyncrc", ".getmail", ".smbcredentials", ".vnc", ".config/tigervnc",
			".rdesktop", ".config/remmina", ".local/share/remmina", ".config/freerdp", ".config/filezilla",
			".filezilla", ".lftprc", ".local/share/lftp",
		}},
		{"cloud tools", []string{
			".aws", ".azure", ".config/gcloud", ".boto", ".gsutil", ".config/gsutil", ".oci", ".oraclecloud",
			".config/doctl", ".fly", ".netlify/config.json", ".config/netlify", ".databricks/token-cache.json",
			".databrickscfg", ".snowflake", ".config/snowflake", ".snowsql", ".bluemix", ".config/linode-cli",
			".linode-cli", ".config/hcloud", ".config/scw", ".config/vultr-cli", ".vultr-cli.yaml", ".aliyun",
			".tccli", ".config/ovh", ".ovh.conf", ".config/openstack", ".cloudflared",
			".wrangler/config/default.toml", ".config/.wrangler", ".config/vercel",
			".local/share/com.vercel.cli", ".railway/config.json", ".config/heroku", ".local/share/heroku",
			".config/configstore/firebase-tools.json", ".config/configstore/snyk.json",
			".microsoft/usersecrets", ".config/firebase", ".clasprc.json", ".config/pulumi",
			".pulumi/credentials.json", ".config/eksctl", ".supabase/access-token", ".config/planetscale",
			".config/stripe", ".twilio-cli", ".config/ngrok", ".ngrok2", ".sentryclirc", ".config/upctl.yaml",
			".exoscale", ".config/exoscale", ".ionosctl", ".config/ionosctl", ".huggingface",
			".cache/huggingface/token", ".cache/huggingface/stored_tokens", ".kaggle", ".config/kaggle",
			".config/wandb",
		}},
		{"clusters and deployment", []string{
			".kube", ".terraform.d/credentials.tfrc.json", ".terraformrc", ".vault-token", ".consul-token",
			".nomad-token", ".config/helm/registry", ".config/helm/repositories.yaml", ".config/argocd",
			".argocd", ".rancher", ".minikube/certs", ".minikube/profiles", ".talos", ".ansible/galaxy_token",
			".ansible_vault_pass", ".vault_pass", ".vault_pass.txt", ".vagrant.d/data",
			".vagrant.d/insecure_private_key", ".config/tkn", ".config/kargo", ".tsh",
		}},
		{"registries of images", []string{
			".docker", ".dockercfg", ".config/containers/auth.json", ".config/cosign", ".sigstore",
		}},
		{"git and forges", []string{
			".git-credentials", ".config/git/credentials", ".config/gh", ".config/hub", ".config/glab-cli",
			".config/tea", ".config/berg", ".config/jj/credentials", ".git-credential-cache",
			".cache/git/credential", ".config/git-credential-oauth", ".gcm", ".gist", ".config/github-copilot",
			".copilot/config.json", ".config/bitbucket", ".arcrc", ".config/sourcehut", ".config/hut",
			".subversion/auth", ".bazaar/authentication.conf", ".cvspass",
		}},
		{"coding agents", []string{
			".claude/.credentials.json", ".codex/auth.json", ".gemini/oauth_creds.json",
			".gemini/google_accounts.json", ".local/share/opencode/auth.json", ".qwen/oauth_creds.json",
			".config/goose/secrets.yaml", ".config/io.datasette.llm/keys.json", ".continue/.env",
			".config/openai", ".config/anthropic",
		}},
	}
}

// secretsOfPrograms are in the files of programs that also have other content.
func secretsOfPrograms() []SecretGroup {
	return []SecretGroup{
		{"package managers", []string{
			".cargo/credentials", ".cargo/credentials.toml", ".m2/settings.xml", ".m2/settings-security.xml",
			".gradle/gradle.properties", ".gradle/enterprise", ".gradle/develocity", ".ivy2/.credentials",
			".sbt/.credentials", ".sbt/1.0/credentials.sbt", ".config/coursier/credentials.properties",
			".npmrc", ".config/npm/npmrc", ".config/yarn/auth.json", ".config/pnpm/rc",
			".config/pnpm/auth.ini", ".bunfig.toml", ".pypirc", ".pip/pip.conf", ".config/pip/pip.conf",
			".config/pypoetry/auth.toml", ".local/share/uv/credentials", ".config/hatch", ".local/share/hatch",
			".continuum", ".gem/credentials", ".local/share/gem/credentials", ".composer/auth.json",
			".config/composer/auth.json", ".hex/hex.config", ".config/hex", ".pub-cache/credentials.json",
			".config/dart/pub-credentials.json", ".cabal/upload", ".stack/upload/credentials.json",
			".conan/.conan.db", ".conan2/credentials.json", ".pause", ".luarocks/upload_config.lua",
			".config/nix/netrc", ".config/cachix", ".config/attic",
		}},
		{"databases", []string{
			".pgpass", ".pg_service.conf", ".my.cnf", ".mylogin.cnf", ".config/pgcli", ".config/mycli",
			".config/litecli", ".myclirc", ".mongorc.js", ".dbshell", ".mongodb", ".config/mongodb",
			".redisclirc", ".rediscli_auth", ".cassandra", ".cqlshrc", ".clickhouse-client", ".influxdbv2",
			".influx", ".dbeaver4", ".local/share/DBeaverData", ".config/DBeaver", ".config/beekeeper-studio",
			".config/TablePlus", ".sqlcmd", ".odbc.ini", ".dbt", ".trino", ".prestodb", ".config/usql",
		}},
		{"s3 tools and copies", []string{
			".s3cfg", ".s3curl", ".passwd-s3fs", ".config/rclone", ".rclone.conf", ".mc", ".mcli",
			".config/s5cmd", ".config/restic", ".config/borg", ".borgmatic", ".config/borgmatic",
			".config/rustic", ".config/kopia", ".duplicity", ".config/duplicacy", ".tarsnap.key", ".tarsnaprc",
			".config/b2", ".b2_account_info",
		}},
		{"password managers and key rings", []string{
			".password-store", ".local/share/gopass", ".config/gopass", ".local/share/keyrings",
			".gnome2/keyrings", ".local/share/kwalletd", ".kde/share/apps/kwallet", ".kde4/share/apps/kwallet",
			".config/op", ".op", ".config/1Password", ".config/Bitwarden", ".config/Bitwarden CLI",
			".config/rbw", ".local/share/rbw", ".cache/rbw", ".config/keepassxc", ".cache/keepassxc",
			".keepass", ".config/KeePass", ".lastpass", ".config/lpass", ".local/share/lpass",
			".config/Enpass", ".local/share/Enpass", ".config/Proton Pass", ".config/protonpass",
			".config/Dashlane", ".electrum", ".bitcoin", ".litecoin", ".ethereum", ".monero",
			".local/share/bisq", ".config/Exodus", ".config/solana", ".config/Ledger Live",
			".foundry/keystores", ".near-credentials", ".aptos", ".sui",
		}},
		{"histories of shells and clients", []string{
			".bash_history", ".bash_sessions", ".zsh_history", ".zhistory", ".histfile", ".history",
			".sh_history", ".ksh_history", ".mksh_history", ".tcsh_history", ".local/share/fish/fish_history",
			".config/fish/fish_history", ".config/nushell/history.txt", ".config/nushell/history.sqlite3",
			".local/share/powershell/PSReadLine", ".local/share/xonsh", ".local/share/elvish",
			".local/share/atuin", ".local/share/mcfly", ".local/state/bash", ".local/state/zsh",
			".python_history", ".local/state/python_history", ".ipython/profile_default/history.sqlite",
			".node_repl_history", ".irb_history", ".pry_history", ".php_history", ".psysh_history",
			".Rhistory", ".octave_hist", ".ghc/ghci_history", ".psql_history", ".mysql_history",
			".mariadb_history", ".sqlite_history", ".rediscli_history", ".mongo_history", ".mongosh",
			".duckdb_history", ".usql_history", ".dbshell_history", ".lesshst", ".local/state/lesshst",
			".wget-hsts", ".gdb_history", ".units_history",
		}},
		{"browsers, mail clients and messengers", profiles()},
	}
}

// profiles are those of browsers, mail clients and messengers, which hold sessions and
// passwords.
func profiles() []string {
	all := []string{
		".mozilla", ".config/mozilla", ".librewolf", ".waterfox", ".floorp", ".zen", ".tor-browser",
		".local/share/torbrowser", ".moonchild productions", ".thunderbird", ".icedove", ".betterbird",
		".config/google-chrome", ".config/google-chrome-beta", ".config/google-chrome-unstable",
		".config/chromium", ".config/BraveSoftware", ".config/microsoft-edge", ".config/microsoft-edge-beta",
		".config/microsoft-edge-dev", ".config/opera", ".config/opera-beta", ".config/vivaldi",
		".config/vivaldi-snapshot", ".config/yandex-browser", ".config/yandex-browser-beta",
		".config/net.imput.helium", ".config/thorium", ".config/ungoogled-chromium", ".config/iridium",
		".config/qutebrowser", ".local/share/qutebrowser", ".config/falkon", ".local/share/falkon",
		".local/share/epiphany", ".config/epiphany", ".config/Min", ".config/nyxt", ".local/share/nyxt",
		".cache/mozilla", ".cache/google-chrome", ".cache/chromium", ".cache/BraveSoftware",
		".cache/microsoft-edge", ".cache/thunderbird", ".config/evolution", ".local/share/evolution",
		".config/geary", ".local/share/geary", ".config/Mailspring", ".claws-mail", ".sylpheed-2.0",
		".local/share/kmail2", ".local/share/akonadi", ".config/goa-1.0", ".config/Slack", ".config/Signal",
		".config/Signal Beta", ".config/discord", ".config/discordcanary", ".config/Element",
		".config/Microsoft/Microsoft Teams", ".config/teams-for-linux", ".config/Skype",
		".config/skypeforlinux", ".config/zoom.conf", ".zoom", ".config/Mattermost", ".config/Rocket.Chat",
		".config/Wire", ".config/Session", ".config/WhatsApp", ".config/whatsapp-for-linux",
		".local/share/TelegramDesktop", ".purple", ".config/Zulip", ".config/Keybase", ".config/keybase",
		".local/share/keybase", ".weechat", ".config/weechat", ".irssi", ".config/hexchat",
		".config/Nextcloud", ".config/Dropbox", ".dropbox", ".config/syncthing", ".local/state/syncthing",
		".config/Notion", ".config/obsidian/Cookies", ".config/Postman", ".postman", ".config/Insomnia",
		".config/Bruno",
	}
	for _, app := range []string{
		"firefox", "chromium", "brave", "opera", "vivaldi", "microsoft-edge", "thunderbird", "slack",
		"signal-desktop", "discord", "telegram-desktop", "bitwarden", "keepassxc", "spotify", "zoom-client",
		"mattermost-desktop", "element-desktop", "teams-for-linux", "postman", "insomnia",
	} {
		all = append(all, "snap/"+app)
	}
	for _, app := range []string{
		"org.mozilla.firefox", "org.mozilla.Thunderbird", "org.mozilla.thunderbird", "org.chromium.Chromium",
		"com.google.Chrome", "com.google.ChromeDev", "com.brave.Browser", "com.microsoft.Edge",
		"com.opera.Opera", "com.vivaldi.Vivaldi", "io.github.ungoogled_software.ungoogled_chromium",
		"io.gitlab.librewolf-community", "app.zen_browser.zen", "one.ablaze.floorp", "net.waterfox.waterfox",
		"org.qutebrowser.qutebrowser", "org.gnome.Epiphany", "org.torproject.torbrowser-launcher",
		"ru.yandex.Browser", "com.slack.Slack", "org.signal.Signal", "com.discordapp.Discord", "im.riot.Riot",
		"org.telegram.desktop", "com.github.IsmaelMartinez.teams_for_linux", "us.zoom.Zoom",
		"com.mattermost.Desktop", "com.bitwarden.desktop", "org.keepassxc.KeePassXC",
		"com.onepassword.OnePassword", "me.proton.Pass", "me.proton.Mail", "com.getpostman.Postman",
		"rest.insomnia.Insomnia", "org.gnome.Evolution", "org.gnome.Geary", "eu.betterbird.Betterbird",
	} {
		all = append(all, ".var/app/"+app)
	}
	return all
}
