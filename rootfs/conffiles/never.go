package conffiles

import (
	"slices"
	"strings"
	"sync"
)

// A NeverGroup is names of one kind that no sandbox sees, although a package has brought a file
// of this name.
type NeverGroup struct {
	Of    string
	Names []string
}

// NeverGroups are all these names. A name without * is a path below /etc, with all below. A name that
// ends with * is the begin of such a path. A name that begins with * is in, or with one * only at
// the end of, the name of the file or of a directory above; upper and lower case are the same there.
func NeverGroups() []NeverGroup {
	return []NeverGroup{
		{"words in the name of a file or a directory", []string{
			"*passw*", "*passphrase*", "*secret*", "*token*", "*credential*", "*private*", "*apikey*", "*api_key*", "*api-key*",
			"*shadow*", "*netrc*", "*oauth*", "*auth.*", "*id_rsa*", "*id_ed25519*", "*hostfile*", "*known_hosts*", "*authorized*",
			"*.key", "*_key", "*-key", "*.pem", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.keytab", "*.kdbx", "*.ovpn", "*.gpg", "*.age", "*.env",
		}},
		{"users, logins and keys", []string{
			"adduser.conf", "deluser.conf", "doas.conf", "duo", "group*", "gshadow*", "google-authenticator*", "krb5*", "ldap", "libnss-*",
			"libpam-*", "login.*", "logind.conf", "nslcd.conf", "opendkim*", "openldap", "pam*", "passwd*", "polkit-1", "sasl*", "security", "shadow*",
			"ssh*", "dropbear", "ssl/private", "pki", "sssd", "subgid*", "subuid*", "sudo*", "u2f_mappings", "yubico*",
		}},
		{"hosts of others and networks", []string{
			"ansible/hosts", "auto.*", "autofs*", "avahi", "ceph", "chef", "chrony*", "cifs*", "cni", "corosync", "dhcp*", "distcc", "dnsmasq*", "docker", "drbd*",
			"exports*", "fstab*", "glusterfs", "ha.d", "hostapd", "hosts*", "ifplugd", "ipsec*", "iscsi", "keepalived", "kubernetes", "multipath*", "netplan",
			"network*", "NetworkManager", "nfs*", "ntp*", "nut", "open-iscsi", "openvpn", "ppp", "puppet*", "rancher", "resolv*", "salt", "samba", "sane.d/net.conf",
			"sane.d/saned.conf", "snmp", "stunnel", "strongswan*", "swanctl", "tinc", "tor", "vpnc", "wireguard", "wpa_supplicant", "wvdial.conf",
		}},
		{"services", []string{
			"aliases", "apache2", "asterisk", "bind", "caddy", "cassandra", "collectd", "consul*", "couchdb", "cups", "dovecot", "elasticsearch", "etcd",
			"exim*", "freeradius", "gitea", "gitlab*", "grafana", "haproxy", "httpd", "icinga*", "influxdb", "jenkins", "kafka", "lighttpd", "mail*",
			"mongo*", "munin", "my.cnf*", "mysql", "nagios*", "nginx", "nomad*", "postfix", "postgresql", "privoxy", "prometheus", "proftpd", "rabbitmq",
			"redis*", "rsyncd*", "sendmail*", "squid*", "supervisor", "telegraf", "tinyproxy", "tomcat*", "unbound", "varnish", "vault*", "vsftpd*", "zabbix*",
		}},
		{"programs with accounts on other hosts", []string{
			"apk", "apt", "aws", "boto*", "borgmatic", "davfs2", "dnf", "duplicity", "esmtprc", "fetchmailrc", "freetds", "git-credential*", "gitconfig",
			"maven/settings.xml", "mercurial/hgrc", "msmtprc", "npmrc", "nullmailer", "odbc*", "pacman*", "php", "pip.conf", "postgresql-common/pg_service.conf", "postgresql-common/user_clusters",
			"proxychains*", "R/Renviron.site", "R/Rprofile.site", "rclone*", "restic", "s3cmd", "ssmtp", "subversion/servers", "tsocks.conf",
			"wgetrc", "yum*", "zypp",
		}},
		{"start-up files of shells and sessions, which may set any variable", []string{
			"bash*", "csh*", "environment*", "fish", "ksh*", "profile*", "skel", "X11/Xsession*", "X11/xdm", "X11/xinit", "X11/Xreset.d", "xdg/autostart",
			"xprofile", "zsh*",
		}},
		{"services of the host's own system", []string{
			"acpi", "anacrontab", "apparmor*", "at.allow", "at.deny", "audit", "cloud", "cron*", "crypt*", "dbus-1", "default", "dpkg/dpkg.cfg*", "dracut*", "fail2ban",
			"grub*", "init*", "ipp-usb", "iptables", "kernel*", "logcheck", "logrotate*", "lvm", "mdadm", "modprobe.d", "modules*",
			"needrestart", "nftables*", "PackageKit", "rc.d", "rc.local", "rsyslog*", "selinux", "smartd.conf", "sysctl*", "systemd", "ucf.conf", "udev",
			"ufw", "update-motd.d",
		}},
		{"texts for people", []string{"issue*", "motd*", "*readme*", "*.placeholder"}},
	}
}

// neverNames are the names of [NeverGroups] in the form in which they are compared.
type neverNames struct {
	paths  map[string]string // an exact path
	others []string          // with a *
}

var never = sync.OnceValue(func() neverNames {
	n := neverNames{paths: map[string]string{}}
	for _, group := range NeverGroups() {
		for _, name := range group.Names {
			if strings.Contains(name, "*") {
				n.others = append(n.others, name)
			} else {
				n.paths[name] = name
			}
		}
	}
	return n
})

// Never returns the name of [NeverGroups] that hides a path below /etc, or an empty string.
func Never(name string) string {
	all := never()
	for end := 0; end < len(name); {
		next := strings.IndexByte(name[end:], '/')
		if next < 0 {
			next = len(name) - end
		}
		whole, part := name[:end+next], strings.ToLower(name[end:end+next])
		if found := all.paths[whole]; found != "" {
			return found
		}
		at := slices.IndexFunc(all.others, func(pattern string) bool { return matches(pattern, whole, part) })
		if at >= 0 {
			return all.others[at]
		}
		end += next + 1
	}
	return ""
}

// matches compares a pattern with a path, or with the last part of the path in lower case.
func matches(pattern, whole, part string) bool {
	word, begins := strings.CutPrefix(pattern, "*")
	if !begins {
		head, tail, _ := strings.Cut(pattern, "*")
		return len(whole) >= len(head)+len(tail) && strings.HasPrefix(whole, head) && strings.HasSuffix(whole, tail)
	}
	if word, ends := strings.CutSuffix(word, "*"); ends {
		return strings.Contains(part, word)
	}
	return strings.HasSuffix(part, word)
}
