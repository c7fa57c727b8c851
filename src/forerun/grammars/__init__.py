"""Grammars: what a text must look like, token by token, inside drafts as well."""

from forerun.grammars.base import Cursor as Cursor
from forerun.grammars.base import Grammar as Grammar
from forerun.grammars.base import Matcher as Matcher
from forerun.grammars.guided import json_object as json_object
from forerun.grammars.guided import json_schema as json_schema
from forerun.grammars.guided import lark as lark
from forerun.grammars.guided import regex as regex
