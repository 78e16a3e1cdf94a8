// Package upstream reaches servers through the HTTP proxy of the host's network, the upstream proxy. It decides which
// destinations go through that proxy, connects to it, and asks it for a tunnel. It does not read the bytes of a tunnel,
// and does not judge names by rules.
//
// The answers of an upstream proxy are hostile here: they are bounded in time and in size.
package upstream
