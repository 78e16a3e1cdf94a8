package sniff

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
)

// maxFields bounds the fields of a head: many short ones need far more memory than their bytes.
const maxFields = 256

// readHead returns the lines of a head, without their ends. The last empty line is not among them.
func readHead(r *bufio.Reader) ([]string, error) {
	var lines []string
	for size := 0; ; {
		line, err := readLine(r, maxBytes-size)
		if err != nil {
			return nil, err
		}
		if len(line) == 0 && len(lines) > 0 {
			return lines, nil
		}
		if len(lines) > maxFields {
			return nil, malformed("the request has more than %d fields", maxFields)
		}
		size += len(line) + 2
		lines = append(lines, string(line))
	}
}

// readLine reads a line that ends with CRLF, and that has no other CR, and no NUL.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > most {
			return nil, malformed("the head of the request is longer than %d bytes", maxBytes)
		}
		if err == nil {
			break
		}
		if errors.Is(err, io.EOF) {
			return nil, io.ErrUnexpectedEOF
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
	text, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || bytes.ContainsAny(text, "\r\x00") {
		return nil, malformed("a line of the request does not end with CRLF, or has a CR or NUL inside")
	}
	return text, nil
}

// fields are the parts of a head that decide how to read the request.
type fields struct {
	raw       []byte // the head for the server
	target    string
	host      string
	encoding  string // Transfer-Encoding
	isUpgrade bool
}

// parseHead reads a head. One for a proxy may have fields that are not for the server, and CONNECT needs no
// Host field there.
func parseHead(lines []string, isForProxy bool) (fields, error) {
	var f fields
	first := strings.Split(lines[0], " ")
	if len(first) != 3 || !isToken(first[0]) || hasControl(lines[0]) || strings.Contains(first[1], "#") {
		return f, malformed("malformed request line %.100q", lines[0])
	}
	f.target = first[1]
	is10 := first[2] == "HTTP/1.0"
	if !is10 && first[2] != "HTTP/1.1" {
		return f, malformed("version %.100q is not supported; use HTTP/1.1", first[2])
	}
	values := map[string][]string{}
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) || hasControl(strings.ReplaceAll(value, "\t", " ")) {
			return f, malformed("malformed field %.100q", line)
		}
		name = strings.ToLower(name)
		values[name] = append(values[name], strings.Trim(value, " \t"))
	}
	isConnect := isForProxy && first[0] == http.MethodConnect
	hosts, lengths, encodings := values["host"], values["content-length"], values["transfer-encoding"]
	switch {
	case len(hosts) != 1 && (len(hosts) > 1 || !isConnect):
		return f, malformed("the request has %d Host fields; it needs one", len(hosts))
	case len(lengths) > 1 || len(encodings) > 1 || len(lengths)+len(encodings) > 1:
		return f, malformed("the request has several lengths: Content-Length %q, Transfer-Encoding %q", lengths, encodings)
	case len(encodings) > 0 && (is10 || !strings.EqualFold(encodings[0], "chunked")):
		return f, malformed("Transfer-Encoding %.100q is not supported in %s", encodings[0], first[2])
	case len(lengths) > 0 && (lengths[0] == "" || strings.Trim(lengths[0], "0123456789") != ""):
		return f, malformed("Content-Length %.100q is not a number", lengths[0])
	}
	f.host, f.encoding = strings.Join(hosts, ""), strings.Join(encodings, "")
	tokens := strings.FieldsFunc(strings.Join(values["connection"], ","), func(r rune) bool { return strings.ContainsRune(", \t", r) })
	for _, t := range tokens {
		if slices.Contains([]string{"host", "content-length", "transfer-encoding"}, strings.ToLower(t)) {
			return f, malformed("a proxy must not remove the field %q", t)
		}
	}
	f.isUpgrade = !is10 && len(values["upgrade"]) == 1 && strings.EqualFold(values["upgrade"][0], "websocket") &&
		slices.ContainsFunc(tokens, func(t string) bool { return strings.EqualFold(t, "upgrade") })
	if isForProxy {
		lines = slices.DeleteFunc(lines, isProxyField)
	}
	f.raw = joinHead(lines, tokens, f.isUpgrade)
	return f, nil
}

func hasControl(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// isProxyField says whether a line is for the proxy only. Old clients send Proxy-Connection.
func isProxyField(line string) bool {
	name, _, _ := strings.Cut(strings.ToLower(line), ":")
	return name == "proxy-connection" || name == "proxy-authorization"
}

// joinHead writes the head for the server. Without an upgrade the server does not hear of one.
func joinHead(lines, connection []string, isUpgrade bool) []byte {
	const upgrade, settings = "upgrade", "http2-settings"
	var b bytes.Buffer
	hasUpgrade := false
	for _, line := range lines {
		name, _, _ := strings.Cut(strings.ToLower(line), ":")
		hasUpgrade = hasUpgrade || name == upgrade || name == settings
	}
	for i, line := range lines {
		name, _, _ := strings.Cut(strings.ToLower(line), ":")
		if i == 0 || isUpgrade || !hasUpgrade || name != upgrade && name != settings && name != "connection" {
			b.WriteString(line + "\r\n")
		}
	}
	if hasUpgrade && !isUpgrade {
		connection = slices.DeleteFunc(connection, func(t string) bool {
			return strings.EqualFold(t, upgrade) || strings.EqualFold(t, settings)
		})
		if len(connection) > 0 {
			b.WriteString("Connection: " + strings.Join(connection, ", ") + "\r\n")
		}
	}
	b.WriteString("\r\n")
	return b.Bytes()
}
