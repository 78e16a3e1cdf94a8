package jobs

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// unreachable counts the connections and packets that had no route in the network namespace of a process. A lookup
// of a name sends packets, too. The kernel counts a refused connect(2) and sendto(2) with ENETUNREACH
// (RFC 4293 ipSystemStatsOutNoRoutes; net/ipv4/tcp_ipv4.c:tcp_v4_connect()). isKnown is false if the process has ended.
func unreachable(init process.ID) (count int64, isKnown bool) {
	v4, err := outNoRoutes(init, "snmp")
	if err != nil {
		return 0, false
	}
	v6, err := outNoRoutes(init, "snmp6")
	if err != nil {
		v6 = 0 // a kernel without IPv6 has no such file
	}
	return v4 + v6, true
}

// outNoRoutes reads the counter from a file in /proc/PID/net: proc_net(5).
func outNoRoutes(init process.ID, file string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", init.Pid, file))
	if err != nil {
		return 0, err
	}
	if file == "snmp6" { // a line for each counter
		_, rest, _ := bytes.Cut(text, []byte("\nIp6OutNoRoutes"))
		value, _, _ := bytes.Cut(rest, []byte("\n"))
		return strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
	}
	// Of each protocol a line of names and a line of values. The first protocol is Ip.
	names, rest, _ := strings.Cut(string(text), "\n")
	values, _, _ := strings.Cut(rest, "\n")
	fields := strings.Fields(values)
	for i, name := range strings.Fields(names) {
		if name == "OutNoRoutes" && i < len(fields) {
			return strconv.ParseInt(fields[i], 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/net/%s has no OutNoRoutes", file)
}
