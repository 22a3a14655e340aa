"""TLS: key stores, trust stores, protocols."""

from ottla.config.types import Scope, Type, key
from ottla.config.validators import ANY_LIST, one_of

BOOLEAN = Type.BOOLEAN
STRING = Type.STRING
LIST = Type.LIST
CLASS = Type.CLASS
PASSWORD = Type.PASSWORD
PER_BROKER = Scope.PER_BROKER

KEYS = (
    key("ssl.allow.dn.changes", BOOLEAN, False),
    key("ssl.allow.san.changes", BOOLEAN, False),
    key("ssl.cipher.suites", LIST, (), ANY_LIST, PER_BROKER),
    key("ssl.client.auth", STRING, "none", one_of("required", "requested", "none"), PER_BROKER),
    key("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), ANY_LIST, PER_BROKER),
    key("ssl.endpoint.identification.algorithm", STRING, "https", None, PER_BROKER),
    key("ssl.engine.factory.class", CLASS, None, None, PER_BROKER),
    key("ssl.key.password", PASSWORD, None, None, PER_BROKER),
    key("ssl.keymanager.algorithm", STRING, "SunX509", None, PER_BROKER),
    key("ssl.keystore.certificate.chain", PASSWORD, None, None, PER_BROKER),
    key("ssl.keystore.key", PASSWORD, None, None, PER_BROKER),
    key("ssl.keystore.location", STRING, None, None, PER_BROKER),
    key("ssl.keystore.password", PASSWORD, None, None, PER_BROKER),
    key("ssl.keystore.type", STRING, "JKS", None, PER_BROKER),
    key("ssl.principal.mapping.rules", STRING, "DEFAULT"),
    key("ssl.protocol", STRING, "TLSv1.3", None, PER_BROKER),
    key("ssl.provider", STRING, None, None, PER_BROKER),
    key("ssl.secure.random.implementation", STRING, None, None, PER_BROKER),
    key("ssl.trustmanager.algorithm", STRING, "PKIX", None, PER_BROKER),
    key("ssl.truststore.certificates", PASSWORD, None, None, PER_BROKER),
    key("ssl.truststore.location", STRING, None, None, PER_BROKER),
    key("ssl.truststore.password", PASSWORD, None, None, PER_BROKER),
    key("ssl.truststore.type", STRING, "JKS", None, PER_BROKER),
)
