"""Tables 1 and 2 on disk."""

from costcert.store.certificates import CertificatesFolder as CertificatesFolder
from costcert.store.certificates import read_certificates as read_certificates
from costcert.store.certificates import write_certificates as write_certificates
from costcert.store.votes import VotesArchive as VotesArchive
from costcert.store.votes import VotesFolder as VotesFolder
from costcert.store.votes import read_votes as read_votes
from costcert.store.votes import write_votes as write_votes
