// Package link is the protocol between the two processes of the proxied network. The parent sends
// orders, and the worker sends reports, on one stream socket.
//
// The worker reads the bytes of sandboxes, so it may be taken over: for the parent its reports are
// hostile. A report has a fixed form with bounds. It names a sandbox by its number, and adds a
// name, counts or a line of the log to this sandbox, or asks a question that the embedder answers. No
// report changes a rule or a socket.
package link

import (
	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// WorkerKind is the kind of the worker (internal/process/worker). Its one file is the socket.
const WorkerKind = "egress-worker"

// Bounds of the protocol.
const (
	// MaxOrder is the longest order, in bytes.
	MaxOrder = channel.MaxFrame
	// MaxRules is how long the JSON text of a Box may be, in bytes. An order has the names of the box, too.
	MaxRules = 4 << 20
	// MaxSockets is how many sockets a box may have. With TPROXY these are three for each family. Without,
	// each family has two for DNS, and one for each of 64 ports (netns/capture).
	MaxSockets = 2 * (2 + 64)
	// MaxFiles is how many descriptors can come to the worker at a time: those of an order can come
	// together with the end of the order before.
	MaxFiles = 2 * MaxSockets
	// MaxConnections is how many connections a box has at one time.
	MaxConnections = 1024
	// MaxNames is how many names a box may have.
	MaxNames = 10_000
	// MaxName is the longest name, in bytes.
	MaxName = 253
	// MaxLine is the longest line of a log, in bytes.
	MaxLine = 2 << 10
	// MaxReport is the longest report, in bytes.
	MaxReport = headSize + countsSize + MaxLine
)

// The descriptors of the worker. The parent admits as many boxes as can have one connection each.
const (
	// FilesOfWorker are for the ports of lookups, the process itself, and the sockets of an order that the worker
	// carries out.
	FilesOfWorker = 256 + 2*MaxSockets
	// FilesPerConnection are the sockets of the client and the server, and two pipes of splice(2).
	FilesPerConnection = 6
)

// A Role is the kind of traffic of a socket of a box.
type Role string

// The roles.
const (
	Streams    Role = "streams"     // captured connections of TCP
	DNSPackets Role = "dns-packets" // queries over UDP
	DNSStreams Role = "dns-streams" // connections with queries
)

// An Order is a message from the parent.
type Order struct {
	// Sequence is not zero if the parent waits for an acknowledgement.
	Sequence uint64 `json:"sequence,omitempty"`
	// Number is the box. Zero is none: then the order only asks for the acknowledgement.
	Number uint32 `json:"number,omitempty"`
	// Box is nil if the box is dismissed.
	Box *Box `json:"box,omitempty"`
	// Roles are those of the sockets beside the order. Without sockets the box keeps its sockets and its
	// connections, as far as the rules permit. New sockets replace the earlier ones, and end all
	// connections.
	Roles []Role `json:"roles,omitempty"`
	// Names are the names of the box in their order. A worker that has the box has the names already.
	Names []string `json:"names,omitempty"`
	// Settle is not zero if the order asks for reports with all counts of the box until now, and for the report
	// KindSettled with this number after them. Such an order changes nothing, and no other order waits for it.
	Settle uint64 `json:"settle,omitempty"`
	// Used are the counts of the box so far.
	Used Counts `json:"used"`
	// Asks says that an embedder decides about names without a rule. All names resolve then.
	Asks bool `json:"asks,omitempty"`
	// Answer answers a question. Such an order has a number, and nothing else.
	Answer *Answer `json:"answer,omitempty"`
}

// A Box has the rules of one sandbox.
type Box struct {
	// Key names the sandbox.
	Key string `json:"key"`
	// Allow and Deny are texts of internal/network/rules.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	// Requests and Bytes bound the use of the network in the life of the sandbox. Zero is no bound. A connection
	// that is not of plain HTTP is one request. Bytes of both directions count.
	Requests uint64 `json:"requests,omitempty"`
	Bytes    uint64 `json:"bytes,omitempty"`
	// Observe allows all names that no rule denies, and all their ports.
	Observe bool `json:"observe,omitempty"`
	// Ask lets an embedder decide about names without a rule. Without Ask there is no embedder.
	Ask bool `json:"ask,omitempty"`
	// Upstream has the proxies of the host's network, with their passwords. Nil: the worker connects to servers itself.
	Upstream *spec.Upstream `json:"upstream,omitempty"`
	// Hint is a way out for servers that are not reached without an upstream proxy. It may be empty.
	Hint string `json:"hint,omitempty"`
}

// Counts are the use of the network by a sandbox.
type Counts struct {
	// Requests are the allowed ones. Refused are the refused connections, requests and queries.
	Requests uint64 `json:"requests"`
	Refused  uint64 `json:"refused"`
	// Sent and Received are bytes, as the sandbox sees them.
	Sent     uint64 `json:"sent"`
	Received uint64 `json:"received"`
	// Dropped are the events that are not in the log, since there were too many at once.
	Dropped uint64 `json:"dropped"`
}

// maxCount leaves room: the sum of two counts is an int64. A hostile worker can report any count.
const maxCount = 1<<62 - 1

// Add adds counts. A count stays at its maximum.
func (c *Counts) Add(more Counts) {
	for i, to := range c.all() {
		*to = min(*to, maxCount) + min(*more.all()[i], maxCount-min(*to, maxCount))
	}
}

// all are the counts in the order of a report.
func (c *Counts) all() [5]*uint64 {
	return [5]*uint64{&c.Requests, &c.Refused, &c.Sent, &c.Received, &c.Dropped}
}

// An Event is one decision, a line of the log as JSON.
type Event = spec.NetworkEvent
