package resolver

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
)

// messages reads and writes the messages of a connection. Over TCP each has its length before
// it (RFC 1035, section 4.2.2).
type messages struct {
	conn     net.Conn
	isStream bool
}

func (m messages) write(message []byte) error {
	if m.isStream {
		message = append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
	}
	_, err := m.conn.Write(message)
	return err
}

var errEmpty = errors.New("empty message")

func (m messages) read() ([]byte, error) {
	if !m.isStream {
		buffer := make([]byte, maxMessage)
		n, err := m.conn.Read(buffer)
		return buffer[:n], err
	}
	var length [2]byte
	if _, err := io.ReadFull(m.conn, length[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(length[:]))
	if len(message) == 0 {
		return nil, errEmpty
	}
	_, err := io.ReadFull(m.conn, message)
	return message, err
}
