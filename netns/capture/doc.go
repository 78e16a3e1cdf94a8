// Package capture makes a network namespace without a link capture all connections. [Open] returns the
// listening sockets inside, for a proxy and a resolver outside. The package knows ports only, and no
// names.
//
// All addresses are local: lo has a local route for 0.0.0.0/0 and one for ::/0. So no packet leaves, and
// any program can be the peer of any address.
//
//   - TCP to an allowed port of a foreign address reaches the transparent listener of its family (TPROXY,
//     Documentation/networking/tproxy.rst). The local address of an accepted socket is the destination.
//   - TCP and UDP to port 53 of each address, also of 127.0.0.1, reaches the DNS sockets. The sandbox can
//     have no server of its own at port 53.
//   - All else to a foreign address is refused at once: TCP by a reset, the rest by "port unreachable".
//   - The own addresses are 127.0.0.0/8, 198.18.0.2, ::1 and fd53::2. Connections between them are as
//     without the package, with all ports but 53.
//
// A kernel without TPROXY (the module nft_tproxy) has a listener at all addresses for each allowed port and
// family. [HasTPROXY] says so. The rest is the same, with these exceptions:
//
//   - At most [MaxPorts] ports can be allowed.
//   - The sandbox can have no server of its own at an allowed port. Open fails while a program has this
//     port. Connections between own addresses to an allowed port are refused, so no accepted socket has
//     an own address as its local one.
//   - The caller must open the listeners anew when the ports change ([ErrReopen]).
//
// A program inside must have neither CAP_NET_ADMIN nor CAP_NET_RAW in the user namespace that owns the
// network namespace. Without them a program cannot change this:
//
//   - With TPROXY, the listeners have the addresses 198.18.0.1 and fd53::1, which are foreign, and ports
//     that the kernel has chosen. Connections to own addresses never reach the listeners, so an accepted socket
//     never has an own address as its local one. A program that connects to 198.18.0.1 or fd53::1, with
//     an allowed port, is captured like any other: the caller must refuse 198.18.0.0/24 and these
//     addresses.
//   - With TPROXY, a server inside can have any port but 53, with one exception. Two ports above 32767 are
//     taken, one in each family, for servers that listen on all addresses.
//   - Each packet has an own address as its source, or comes from one of the listening sockets or their
//     connections. These bear a mark (SO_MARK), which no other socket can have. The kernel lets programs
//     bind sockets to foreign addresses, but all packets of such a socket are refused.
package capture
