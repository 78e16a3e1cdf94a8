// Package router connects sandboxes with the world outside.
//
// All sandboxes of a state root are connected with one network namespace, the router. One link
// connects the router with the host:
//
//	sandbox eth0 ── s… router uplink ── sr-… host ── interfaces of the host
//
// The links are pairs of veth(4) devices without a bridge. The router's nftables table decides
// which packets pass. A sandbox adds elements to sets of that table, and no rule: so a packet
// costs the same beside one sandbox and beside thousands. The host's table hides the addresses
// of sandboxes behind those of the host, and keeps packets from the host's own addresses.
//
// Tools that flush the host's firewall do not reach the router's table. Without the host's
// table a rule of the host's routing (ip-rule(8)) refuses the router's packets.
// docs/adr/0020 has the reasons.
package router
