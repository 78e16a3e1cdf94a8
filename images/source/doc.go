// Package source reads images: from registries, archives, layouts, root tarballs and directories.
//
// For most uses call Open, hand over Image.Config, call Layer.Open for each layer that is missing, and
// call Image.Close. The package runs with the rights and the credentials of its caller. It stores nothing
// but its own cache of downloads, and it never unpacks a layer.
//
// A reference is one of these:
//
//	debian, debian:12, quay.io/org/name:tag     a registry, as Docker reads the name
//	name@sha256:HEX, name:tag@sha256:HEX        the same; the digest decides, the tag is only a label
//	oci:DIR[:TAG]                               an OCI layout
//	oci-archive:FILE[:TAG]                      a tar archive of an OCI layout
//	docker-archive:FILE                         an archive of docker save that has one image
//	rootfs:FILE                                 a tar archive of a root file system
//	dir:DIR                                     a directory of this host as the root file system
//	-                                           standard input: any of the three kinds of archive
//
// Archives can be compressed with gzip or zstd. A TAG is the part behind the last colon, if no slash
// follows this colon. A layout or archive with several images needs a TAG.
//
// Images and registries are hostile. The package has these rules:
//   - The digest of the manifest is fixed once. All other objects are asked for by digest. A layer's reader
//     fails at its end if size or digest are wrong.
//   - The fields of a document tell whether it is a manifest or an index, and no media type may contradict them. Digest
//     algorithms, compressions and types of configs and layers come from lists of the supported ones.
//   - At most 4 indexes and 64 documents lead to a manifest.
//   - Plain HTTP is for loopback addresses and for the hosts in Options.PlainHTTP.
//   - Credentials go to the host that they are for. A token server also gets them if it belongs to the same
//     site over TLS, or is in Options.TokenHosts. A redirect never carries credentials to another host.
//   - A server that sends nothing, or nearly nothing, is left after a time limit. Requests are tried again
//     after cuts and after the statuses 429, 500, 502, 503 and 504.
//
// Each user has one cache. Processes that pull the same layer at the same time share one download.
package source
